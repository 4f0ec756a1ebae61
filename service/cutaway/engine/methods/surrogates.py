"""KernelSHAP and LIME: a linear model is fitted to the target's values when features are replaced by the baseline."""

from __future__ import annotations

from functools import partial
from typing import Any

from captum import attr

from cutaway.engine.methods.perturbations import sampling_arguments
from cutaway.engine.methods.spec import Method
from cutaway.engine.methods.validation import refuse_row_numbers
from cutaway.engine.passes.pass_recorder import AttributionProblem
from cutaway.engine.references import surrogates as references
from cutaway.engine.references.surrogate_errors import kernel_shap_errors, lime_errors
from cutaway.engine.runtime.numerics import FITTED
from cutaway.errors import Reason, error
from cutaway.requests import Attribution, KernelShap, Lime, Surrogate
from cutaway.schema.tensors import as_array

MAX_FEATURES = 4096

MAX_ELEMENTS = 2**22
"""Samples times features: the size of the matrix that is fitted for each example."""


def _arguments(problem: AttributionProblem) -> dict[str, Any]:
    if problem.rows > 1:
        refuse_row_numbers(
            problem, "runs each example in passes of its own", "send one example a request, or ask for a class"
        )
    return sampling_arguments(problem)


def _refuse_features(request: Surrogate, count: int) -> None:
    fewest = 2 if isinstance(request, KernelShap) else 1
    if count < fewest:
        raise error(
            Reason.INVALID_VALUE,
            f"{count} features; {fewest} or more are needed: FeatureAblation explains one",
            "masks",
        )
    if count > MAX_FEATURES or count * request.n_samples > MAX_ELEMENTS:
        raise error(
            Reason.INVALID_VALUE,
            f"{request.n_samples} samples of {count} features make too large a fit, of at most {MAX_FEATURES} features "
            f"and {MAX_ELEMENTS} numbers: group elements into fewer features by masks",
            "masks",
        )


def _is_complete(request: KernelShap) -> bool:
    """From two samples on the fit is almost exact for all features and for none; but a mask with rows of its own may
    leave a row without an element of some feature."""
    return request.n_samples > 1 and all(len(as_array(mask)) == 1 for mask in request.masks.values())


_row = partial(
    Method,
    points=references.surrogate_points,
    attribute_arguments=_arguments,
    forward_only=True,
    uses_randomness=True,
    tolerances=FITTED,
    reference_passes=references.surrogate_passes,
    refuse_features=_refuse_features,
)

ROWS: dict[type[Attribution], Method] = {
    KernelShap: _row(
        attr.KernelShap,
        references.kernel_shap,
        "the coefficients of f fitted to the draws under the Shapley kernel, from raw outputs",
        vacuous=references.underdetermined,
        standard_errors=kernel_shap_errors,
        satisfies_completeness=_is_complete,
    ),
    Lime: _row(
        attr.Lime,
        references.lime,
        "the coefficients of a Lasso of f fitted to the draws, weighted by nearness, from raw outputs",
        vacuous=references.underdetermined_or_zero,
        standard_errors=lime_errors,
    ),
}
