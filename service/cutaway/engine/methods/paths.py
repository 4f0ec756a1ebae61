"""Methods that walk a path from a baseline to the input."""

from __future__ import annotations

from typing import Any

from captum import attr

from cutaway.engine.method import PATH, Method
from cutaway.engine.references import paths as references
from cutaway.engine.witness import Question
from cutaway.requests import Attribution, IntegratedGradients

CAPTUM_ROWS_A_PASS = 64
"""Captum walks a path in passes of about this many rows, so that memory does not grow with the number of steps."""


def _path_options(question: Question) -> dict[str, Any]:
    request: Any = question.request
    return {
        "baselines": tuple(question.baselines[name] for name in question.explained),
        "n_steps": request.n_steps,
        "method": request.quadrature.value,
        "internal_batch_size": question.rows if question.keeps_rows else max(CAPTUM_ROWS_A_PASS, question.rows),
    }


ROWS: dict[type[Attribution], Method] = {
    IntegratedGradients: Method(
        attr.IntegratedGradients,
        references.integrated_gradients,
        references.on_path,
        "(x - baseline) * the weighted sum of the raw gradients on the path",
        settings=lambda request: {"multiply_by_inputs": request.multiply_by_inputs},
        options=_path_options,
        adds_up=lambda request: bool(request.multiply_by_inputs),
        tolerances=PATH,
    ),
}
