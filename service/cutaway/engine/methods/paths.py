"""Methods that walk a path from a baseline to the input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from captum import attr

from cutaway.engine.balance import Balance
from cutaway.engine.copies import tells_rows_apart
from cutaway.engine.method import PATH, Method
from cutaway.engine.references import paths as references
from cutaway.engine.subject import Inputs, Subject
from cutaway.engine.witness import Changes, Question, Values
from cutaway.errors import Reason, error
from cutaway.requests import (
    Attribution,
    IntegratedGradients,
    InternalInfluence,
    LayerConductance,
    LayerIntegratedGradients,
    PathAttribution,
    Quadrature,
)

MAX_STEPS = 4096

MAX_NODES = 1024
"""Of Gauss-Legendre, whose nodes are eigenvalues: 1024 take a tenth of a second to find, 4096 half a minute."""


def _path_options(question: Question) -> dict[str, Any]:
    request: Any = question.request
    return {
        "baselines": tuple(question.baselines[name] for name in question.explained),
        "n_steps": request.n_steps,
        "method": request.quadrature.value,
        "internal_batch_size": references.rows_a_pass(question),
    }


def _conductance_rows(question: Question) -> int:
    """Rows of a pass of `LayerConductance`: two steps are the fewest, since Captum takes their difference."""
    return max(references.affordable(question), 2 * question.rows)


def _conductance_together(question: Question) -> int:
    """How many points, of which there is one more than there are steps."""
    return max(2, _conductance_rows(question) // question.rows)


def _conductance_points(question: Question) -> list[Values]:
    return references.through_steps(question, _conductance_rows(question))


def _conductance_options(question: Question) -> dict[str, Any]:
    if question.chosen.bound or any(map(tells_rows_apart, question.edits)):
        raise error(
            Reason.METHOD_INAPPLICABLE,
            "Captum's LayerConductance runs several steps in one pass: rows have no numbers of their own there, in "
            "edits or in the target; ask InternalInfluence or LayerIntegratedGradients, or class targets",
        )
    return {**_path_options(question), "internal_batch_size": _conductance_rows(question)}


def refuse_steps(_: Subject, request: PathAttribution, inputs: Inputs, edits: Changes) -> None:
    """Refuse what is no number of steps for the request's quadrature."""
    # A conductance is made of differences between steps: there is one point more than there are steps.
    one = request.quadrature is Quadrature.GAUSS_LEGENDRE or isinstance(request, LayerConductance)
    fewest = 1 if one else 2
    most = most_steps(request)
    if not fewest <= request.n_steps <= most:
        raise error(
            Reason.INVALID_VALUE,
            f"{request.n_steps} steps; {request.quadrature.name} takes {fewest} to {most}",
            "path.n_steps",
        )


def most_steps(request: PathAttribution) -> int:
    """The most steps that the request's quadrature may take."""
    return MAX_NODES if request.quadrature is Quadrature.GAUSS_LEGENDRE else MAX_STEPS


def finer_steps(request: Attribution, found: Balance) -> PathAttribution | None:
    """``request`` with twice the steps, where it sets a bound that ``found`` is not within, and there are more to be
    had."""
    if not isinstance(request, PathAttribution) or request.max_delta is None:
        return None
    most = most_steps(request)
    if request.n_steps >= most or bool((found.delta.abs() <= request.max_delta).all()):
        return None
    return replace(request, n_steps=min(2 * request.n_steps, most))


ROWS: dict[type[Attribution], Method] = {
    IntegratedGradients: Method(
        attr.IntegratedGradients,
        references.integrated_gradients,
        references.on_path,
        "(x - baseline) * the weighted sum of the raw gradients on the path",
        settings=lambda request: {"multiply_by_inputs": request.multiply_by_inputs},
        options=_path_options,
        adds_up=lambda request: bool(request.multiply_by_inputs),
        together=references.steps_a_pass,
        tolerances=PATH,
        refuse=refuse_steps,
        by_row=True,
    ),
    InternalInfluence: Method(
        attr.InternalInfluence,
        references.internal_influence,
        references.on_path,
        "the weighted sum of the layer's raw gradients on the path",
        options=_path_options,
        together=references.steps_a_pass,
        tolerances=PATH,
        refuse=refuse_steps,
        by_row=True,
    ),
    LayerConductance: Method(
        attr.LayerConductance,
        references.layer_conductance,
        _conductance_points,
        "the sum of the layer's raw gradients * the change of its raw output, step by step on the path",
        options=_conductance_options,
        adds_up=lambda _: True,
        together=_conductance_together,
        tolerances=PATH,
        refuse=refuse_steps,
        by_row=True,
    ),
    LayerIntegratedGradients: Method(
        attr.LayerIntegratedGradients,
        references.layer_integrated_gradients,
        references.layer_steps,
        "(raw output at x - raw output at the baseline) * the weighted sum of the layer's raw gradients, its output "
        "replaced on the way from one to the other",
        options=_path_options,
        adds_up=lambda _: True,
        tolerances=PATH,
        refuse=refuse_steps,
        own=references.layer_path,
        by_row=True,
    ),
}
