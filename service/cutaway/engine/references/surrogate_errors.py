"""Standard errors of KernelSHAP and LIME: how far an estimate from draws may lie from that of all masks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float64

from cutaway.engine.passes.pass_recorder import AttributionProblem, Values
from cutaway.engine.references.observation import expand_features
from cutaway.engine.references.surrogates import (
    FittedRow,
    Masks,
    Numbers,
    PerSample,
    kernel_shap_fits,
    lime_fits,
)

_SINGULAR = 1e-9
"""A sample with less than this of its own is needed: without it the others do not determine the fit."""


def kernel_shap_errors(problem: AttributionProblem) -> Values:
    """Returns the standard errors of KernelSHAP's coefficients; the first two masks are not drawn."""
    return _standard_errors(problem, kernel_shap_fits(problem), drawn=2)


def lime_errors(problem: AttributionProblem) -> Values:
    """Returns the standard errors of LIME's coefficients, 0 for those that the penalty makes 0."""
    return _standard_errors(problem, lime_fits(problem), drawn=0)


def _standard_errors(problem: AttributionProblem, rows: Sequence[FittedRow], drawn: int) -> Values:
    errors = [jackknife(row.masks, row.targets, row.weights, row.fit.coefficients, drawn) for row in rows]
    return expand_features(problem, torch.from_numpy(np.stack(errors)))


def jackknife(
    masks: Masks, targets: PerSample, weights: PerSample, coefficients: Float64[Numbers, "features"], drawn: int
) -> Float64[Numbers, "features"]:
    """Returns the standard error of each coefficient: how much the fit moves when the samples from number ``drawn`` on
    are left out, one at a time.

    A penalty keeps the signs of the coefficients, and those that are 0. Infinite where the samples left do not
    determine the fit. Miller 1974, doi:10.1093/biomet/61.1.1.
    """
    errors = np.zeros(len(coefficients))
    used, roots = np.flatnonzero(coefficients), np.sqrt(weights)
    intercept = weights @ (targets - masks @ coefficients) / weights.sum()
    residuals = roots * (targets - intercept - masks @ coefficients)
    design = np.column_stack([np.ones(len(masks)), masks[:, used]]) * roots[:, None]
    inverse = np.linalg.pinv(design)
    left = 1 - np.einsum("ij,ji->i", design, inverse)[drawn:]
    if np.linalg.matrix_rank(design) < design.shape[1] or not (left > _SINGULAR).all():
        errors[used] = np.inf
        return errors
    changes = inverse[1:, drawn:] * (residuals[drawn:] / left)
    count = changes.shape[1]
    errors[used] = np.sqrt((count - 1) / count * ((changes - changes.mean(axis=1, keepdims=True)) ** 2).sum(axis=1))
    return errors
