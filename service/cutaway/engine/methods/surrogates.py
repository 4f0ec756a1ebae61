"""Methods that fit a simple model to what the target does when features are replaced."""

from __future__ import annotations

from typing import Any, cast

from captum import attr

from cutaway.engine.copies import tells_rows_apart
from cutaway.engine.features import features
from cutaway.engine.method import Method, Tolerances
from cutaway.engine.references import surrogates as references
from cutaway.engine.subject import Inputs, Subject
from cutaway.engine.witness import Changes, Question
from cutaway.errors import Reason, error
from cutaway.requests import Attribution, KernelShap, Lime, Surrogate
from cutaway.tensors import as_array

MAX_FEATURES = 4096

MAX_ENTRIES = 2**22
"""Draws times features: what is fitted for each example."""

# Captum fits in float32, whatever the model computes in.
FITTED = Tolerances(float64=1e-3, float32=1e-3, bfloat16=1e-3, float16=1e-3)


def _given(question: Question) -> dict[str, Any]:
    """Baselines, masks and draws as Captum takes them."""
    if question.rows > 1 and (question.chosen.bound or any(map(tells_rows_apart, question.edits))):
        raise error(
            Reason.METHOD_INAPPLICABLE,
            "Captum runs each example by itself here: rows have no numbers of their own, in edits or in the target; "
            "send one example a request, or ask a class",
        )
    parts = question.features
    return {
        "baselines": tuple(parts.baselines[name] for name in parts.explained),
        "feature_mask": tuple(parts.numbers[name] for name in parts.explained),
        "n_samples": cast(Surrogate, question.request).n_samples,
        "perturbations_per_eval": 1,
    }


def _refuse(_: Subject, request: Surrogate, inputs: Inputs, edits: Changes) -> None:
    count = features(request, inputs).count
    fewest = 2 if isinstance(request, KernelShap) else 1
    if count < fewest:
        raise error(
            Reason.INVALID_VALUE,
            f"{count} features; {fewest} or more can be told apart: FeatureAblation explains one",
            "masks",
        )
    if count > MAX_FEATURES or count * request.n_samples > MAX_ENTRIES:
        raise error(
            Reason.INVALID_VALUE,
            f"{request.n_samples} samples of {count} features make too large a fit, of at most {MAX_FEATURES} features "
            f"and {MAX_ENTRIES} numbers: group elements into fewer features by masks",
            "masks",
        )


def _adds_up(request: KernelShap) -> bool:
    """Both ends are fitted almost exactly, from two draws on; but a row may have no element of a mask's feature."""
    return request.n_samples > 1 and all(len(as_array(mask)) == 1 for mask in request.masks.values())


ROWS: dict[type[Attribution], Method] = {
    KernelShap: Method(
        attr.KernelShap,
        references.kernel_shap,
        references.points,
        "the coefficients of f fitted to the draws under the Shapley kernel, from raw outputs",
        options=_given,
        perturbs=True,
        draws=True,
        moot=references.underdetermined,
        adds_up=_adds_up,
        tolerances=FITTED,
        own=references.surrogate_passes,
        refuse=_refuse,
    ),
    Lime: Method(
        attr.Lime,
        references.lime,
        references.points,
        "the coefficients of a Lasso of f fitted to the draws, weighted by nearness, from raw outputs",
        options=_given,
        perturbs=True,
        draws=True,
        moot=references.penalised,
        tolerances=FITTED,
        own=references.surrogate_passes,
        refuse=_refuse,
    ),
}
