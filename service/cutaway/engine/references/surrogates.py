"""KernelSHAP and LIME: a linear model is fitted to the target's values when features are replaced by the baseline.

Notation: ``m`` is a mask, [features] of 0 and 1. ``y`` is the target when the features with 0 are at their baseline.
``s`` is the mask's weight. The fit minimizes ``sum of s * (y - c0 - c m)^2``, for LIME plus a penalty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from cutaway.contract.requests import Attribution, KernelShap, Lime, Surrogate
from cutaway.contract.results import Cause
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.passes.findings import THIS_ROW, Finding, row_list
from cutaway.engine.passes.pass_recorder import AttributionProblem, Pass, Values, cached_per_problem, run_passes
from cutaway.engine.passes.reference_inputs import ComputedPoints, Evidence, Points, Reference, host, input_point
from cutaway.engine.references.observation import Fold, expand_features, target_values
from cutaway.engine.runtime.numerics import SUM

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]  # jaxtyping does not read NDArray of NumPy 2.5
Masks: TypeAlias = Float64[Numbers, "samples features"]
PerSample: TypeAlias = Float64[Numbers, "samples"]

END_WEIGHT = 1e6
"""The weight, in place of infinity, of the masks with all features and with none."""

PENALTY = 0.01
"""The penalty of LIME's Lasso, per unit of the coefficients' magnitudes."""

_SOLVER_ROUNDINGS = 16
"""The error of a least-squares fit, in roundings of its data times the condition number of its masks."""

_MOST_SOLVER_ERROR = 0.02
"""However the draws are conditioned, a larger difference is no agreement: it proves nothing."""


class Fit(NamedTuple):
    """A linear model.

    Attributes:
        coefficients: one for each feature.
        terms: the magnitude of the numbers whose rounding errors, in float32, the coefficients contain.
        error: how much a solver in float32 may err, relative to the largest coefficient.
    """

    coefficients: Float64[Numbers, "features"]
    terms: Float64[Numbers, "features"]
    error: float = 0.0


class FittedRow(NamedTuple):
    """The masks, targets and weights of one example, and their fit."""

    masks: Masks
    targets: PerSample
    weights: PerSample
    fit: Fit


# Masks.


@cached_per_problem
def sampled_masks(problem: AttributionProblem) -> Bool[Tensor, "batch samples features"]:
    """Returns Captum's random masks, drawn example by example."""
    generator = torch.Generator().manual_seed(problem.seed or 0)
    count, samples = problem.features.count, cast(Surrogate, problem.request).n_samples
    by_row = []
    for _ in range(problem.rows):
        masks, drawn = SURROGATES[type(problem.request)].masks(count, generator), list[Tensor]()
        for _ in range(samples):
            problem.model.give_way()  # thousands of draws take a second
            drawn.append(next(masks))
        by_row.append(torch.stack(drawn))
        _skip_unused_numbers(count, generator)
    return torch.stack(by_row)


def _skip_unused_numbers(count: int, generator: torch.Generator) -> None:
    """Advances ``generator`` by what each of Captum's fits draws and does not use.

    That is a seed for the data loader that reads the masks, and the initial weights and bias of the linear layer that
    then holds the coefficients.
    """
    torch.empty((), dtype=torch.int64).random_(generator=generator)
    torch.empty(1, count).uniform_(generator=generator)
    torch.empty(1).uniform_(generator=generator)


def _coalitions(count: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yields all features; none; then masks of ``k`` of ``M`` features, with ``P(k)`` ~ ``1 / (k (M - k))``."""
    yield torch.ones(count, dtype=torch.bool)
    yield torch.zeros(count, dtype=torch.bool)
    sizes = torch.arange(count, dtype=torch.float32)
    probabilities = (count - 1) / (sizes * (count - sizes))
    probabilities[0] = 0
    probabilities /= probabilities.sum()
    while True:
        size = int(torch.multinomial(probabilities, 1, replacement=True, generator=generator))
        order = torch.randn(1, count, generator=generator)[0]
        yield order > order.sort().values[count - size - 1]


def _independent_masks(count: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yields masks that contain each feature with probability 1/2."""
    while True:
        yield torch.bernoulli(torch.full((1, count), 0.5), generator=generator)[0].bool()


# Points.


def surrogate_points(problem: AttributionProblem) -> Points:
    """Returns the batch, if it has several rows; then each example by itself, for each of its masks."""
    batch = input_point(problem) if problem.rows > 1 else []

    def computed() -> Iterator[Values]:
        yield from batch
        for row, masks in enumerate(sampled_masks(problem)):
            yield from _masked(problem, row, masks)

    return ComputedPoints(len(batch) + sampled_masks(problem)[..., 0].numel(), computed)


def _masked(problem: AttributionProblem, row: int, masks: Tensor) -> Iterator[Values]:
    """Yields, for each of ``masks``, example ``row`` with the features outside of the mask at their baseline."""
    example = slice(row, row + 1)
    for mask in masks:
        point = {}
        for name, numbers in problem.features.numbers.items():
            features = numbers[example] if len(numbers) > 1 else numbers
            kept = mask.to(features.device)[features]
            point[name] = torch.where(kept, problem.inputs[name][example], problem.baselines[name][example])
        yield point


class _Evaluated(NamedTuple):
    """The outputs of the model for the masks of an example, and the nearness of the masked inputs to the example."""

    outputs: Sequence[Tensor]
    cosines: PerSample


@cached_per_problem
def _evaluated(problem: AttributionProblem) -> Sequence[_Evaluated]:
    """Runs each example by itself under each mask, as under Captum: batches of another size round differently."""
    by_row = []
    for row, masks in enumerate(sampled_masks(problem)):
        inputs = {name: tensor[row : row + 1] for name, tensor in problem.inputs.items()}
        example, outputs, cosines = replace(problem, inputs=inputs), [], []
        (original,) = input_point(example)
        for mask, recorded in zip(masks, run_passes(example, _masked(problem, row, masks), differentiate=False)):
            output = recorded.output
            outputs.append(output.reshape(1, *output.shape[output.ndim > 0 :]))
            cosines.append(
                _cosine(_flat(original), _flat(recorded.points))
                if problem.request.llm_attribution is None
                else _cosine_of_presence(problem, mask)
            )
        by_row.append(_Evaluated(outputs, np.array(cosines)))
    return by_row


def _flat(point: Values) -> Tensor:
    return torch.cat([host(tensor[0]).reshape(-1) for tensor in point.values()])


def _cosine(one: Tensor, other: Tensor) -> float:
    return float(one @ other / max(1e-8, float(one.norm())) / max(1e-8, float(other.norm())))


def _cosine_of_presence(problem: AttributionProblem, mask: Tensor) -> float:
    """Returns the cosine between all tokens and those under ``mask``, of which each is 1, or 0: what Captum's class for
    language models masks are not ids."""
    (numbers,) = problem.features.numbers.values()
    return float(mask[numbers.cpu()].double().mean().sqrt())


def surrogate_passes(problem: AttributionProblem) -> Iterator[Pass]:
    """Yields a pass for each mask number, with each example under its own mask, of which only the output is kept."""
    point = dict(zip(problem.explained, problem.arguments))
    for outputs in zip(*(of_row.outputs for of_row in _evaluated(problem))):
        yield Pass(point, output=torch.cat(outputs))


# References.


def surrogate(problem: AttributionProblem, call: int) -> Fold[Reference]:
    """Returns the coefficients of the request's surrogate: see `SURROGATES`."""
    while (yield) is not None:
        pass  # the fits read the same passes
    rows = fits(problem)
    coefficients, terms = (
        torch.from_numpy(np.stack(vectors))
        for vectors in ([row.fit.coefficients for row in rows], [row.fit.terms for row in rows])
    )
    values, sizes = (expand_features(problem, by_feature) for by_feature in (coefficients, terms))
    return Reference(values, sizes, max(row.fit.error for row in rows), rounding=SUM.float32)


@cached_per_problem
def fits(problem: AttributionProblem) -> Sequence[FittedRow]:
    """Returns the fit of each example."""
    kind = SURROGATES[type(problem.request)]
    evidence = Evidence(problem, list(surrogate_passes(problem)))
    # Captum's fits round the target to float32.
    targets = np.asarray(target_values(evidence).float().numpy(), dtype=np.float64)
    fitted = []
    for row, masks in enumerate(sampled_masks(problem).double().numpy()):
        weights, own = kind.weigh(masks, _evaluated(problem)[row].cosines), targets[:, row]
        is_finite = bool(np.isfinite(own).all() and np.isfinite(weights).all())
        unknown = np.full(masks.shape[1], np.nan)
        with apart(problem.model, masks.size):
            fit = kind.fit(masks, own, weights) if is_finite else Fit(unknown, unknown)
        fitted.append(FittedRow(masks, own, weights, fit))
    return fitted


LARGE_FIT = 2**16
"""The masks times features from which a fit takes some milliseconds, and up to a second."""


@contextmanager
def apart(model: InspectedModel, size: int) -> Iterator[None]:
    """Surrounds a computation on a matrix of ``size`` numbers, which does not run the model. Other requests run during
    a large one, and may run before a small one."""
    if size > LARGE_FIT:
        with model.apart():
            yield
    else:
        model.give_way()
        yield


def _weights_by_size(masks: Numbers, _: Numbers) -> Numbers:
    sizes = masks.sum(axis=1)
    return np.where((sizes == 0) | (sizes == masks.shape[1]), END_WEIGHT, 1.0)


def _weights_by_nearness(_: Numbers, cosines: Numbers) -> Numbers:
    return np.exp(-((1 - cosines) ** 2) / 2)


# Fits.


def least_squares(masks: Masks, targets: PerSample, weights: PerSample) -> Fit:
    """Returns weighted least squares with an intercept; of several solutions the one of smallest norm."""
    design, aims = _centered(masks, targets, weights)
    solution, _, _, singular_values = np.linalg.lstsq(design, aims, rcond=1e-6)
    coefficients = np.asarray(solution, dtype=np.float64)
    used = singular_values[singular_values > 1e-6 * singular_values[:1]]
    condition = float(used[0] / used[-1]) if len(used) else 1.0
    # The conditioning of the fit multiplies the rounding of the data.
    error = _SOLVER_ROUNDINGS * float(np.finfo(np.float32).eps) * condition
    largest = float(np.abs(coefficients).max(initial=0))
    # A target that no mask changes leaves its own rounding errors.
    terms = np.full_like(coefficients, largest * error / SUM.float32 + np.abs(targets).max())
    return Fit(coefficients, terms, min(error, _MOST_SOLVER_ERROR))


def lasso(masks: Masks, targets: PerSample, weights: PerSample) -> Fit:
    """Minimizes ``sum of s * (y - c0 - c m)^2 / (2 sum of s) + penalty * sum of |c|``."""
    from sklearn.linear_model import Lasso  # here, because it takes two seconds

    design, aims = _centered(masks, targets, weights * (len(weights) / weights.sum()))
    # The fit needs no random numbers; without a state of its own it advances NumPy's generator all the same.
    coefficients = Lasso(PENALTY, fit_intercept=False, random_state=0).fit(design, aims).coef_
    return Fit(coefficients, np.full_like(coefficients, np.abs(coefficients).max() + np.abs(targets).max()))


def _centered(masks: Masks, targets: PerSample, weights: PerSample) -> tuple[Masks, PerSample]:
    """Returns masks and targets minus their weighted means, times the root of the weights: no intercept is left."""
    shares, roots = weights / weights.sum(), np.sqrt(weights)
    return (masks - shares @ masks) * roots[:, None], (targets - shares @ targets) * roots


# The two surrogates.


class SurrogateKind(NamedTuple):
    """One surrogate.

    Attributes:
        masks: yields the random masks of so many features.
        weigh: returns the weight of each mask of one example, from the masks and the cosines of the masked inputs.
        fit: fits the linear model.
        fixed: the number of masks, the first ones, that are not drawn.
    """

    masks: Callable[[int, torch.Generator], Iterator[Tensor]]
    weigh: Callable[[Numbers, Numbers], Numbers]
    fit: Callable[[Numbers, Numbers, Numbers], Fit]
    fixed: int


SURROGATES: dict[type[Attribution], SurrogateKind] = {
    KernelShap: SurrogateKind(_coalitions, _weights_by_size, least_squares, fixed=2),
    Lime: SurrogateKind(_independent_masks, _weights_by_nearness, lasso, fixed=0),
}
"""KernelSHAP: weighted least squares. The masks are drawn from the Shapley kernel; those with all features and with
none have the weight `END_WEIGHT`, the others 1. Lundberg and Lee 2017, arXiv:1705.07874.

LIME: a Lasso in which a mask's weight is ``exp(-(1 - cos(x, x'))^2 / 2)``, where ``x'`` is the masked input. Ribeiro et
al. 2016, arXiv:1602.04938.
"""


# Vacuous results.


def underdetermined(problem: AttributionProblem) -> Finding | None:
    """Reports masks for which several linear models fit equally well."""
    count, masks = problem.features.count, sampled_masks(problem).double().numpy()
    ranks = [_rank(problem, of_row) for of_row in masks]
    if not (rows := [row for row, rank in enumerate(ranks) if rank < count]):
        return None

    def tell(which: str, rank: int) -> str:
        return (
            f"the {masks.shape[1]} draws of {which} distinguish {rank} of {count} features, so many fits are equally "
            f"good: send more samples, over {2 * count}, or group elements into fewer features by masks"
        )

    reason, own = tell(row_list(rows, problem.rows), min(ranks)), (tell(THIS_ROW, ranks[row]) for row in rows)
    return Finding(Cause.UNDERDETERMINED, reason, tuple(rows), tuple(own))


def _rank(problem: AttributionProblem, masks: Masks) -> int:
    with apart(problem.model, masks.size):
        return int(np.linalg.matrix_rank(masks - masks.mean(axis=0)))


def underdetermined_or_zero(problem: AttributionProblem) -> Finding | None:
    """Reports, for LIME, what `underdetermined` reports, and a penalty that makes all coefficients 0."""
    few = underdetermined(problem)
    spans = {row: np.ptp(each.targets) for row, each in enumerate(fits(problem)) if not each.fit.coefficients.any()}
    rows = [row for row, span in spans.items() if span]
    if not rows or (few and len(few.rows) == problem.rows):
        return few
    fewer = "" if problem.request.masks else ", or group elements into larger features by masks"  # type: ignore[attr-defined]

    def tell(which: str, span: float) -> str:
        return (
            f"LIME's penalty of {PENALTY} makes all coefficients of {which} 0, because the features change the target "
            f"too little, by {span:.2g} between all draws, and more draws do not help: ask KernelShap or "
            f"ShapleyValueSampling, which have no penalty{fewer}; of a probability, explain the logit"
        )

    reason, own = tell(row_list(rows, problem.rows), max(spans.values())), (tell(THIS_ROW, spans[row]) for row in rows)
    zero = Finding(Cause.NOT_MOVED, reason, tuple(rows), tuple(own))
    if few is None:
        return zero
    both = tuple(sorted({*few.rows, *rows}))
    by_row = ("; ".join(found.of_row(row) for found in (few, zero) if row in found.rows) for row in both)
    return Finding(few.cause, f"{few.reason}; {zero.reason}", both, tuple(by_row))


# Standard errors of KernelSHAP and LIME: the spread of an estimate from draws around that of all masks.

_SINGULAR = 1e-9
"""A sample with less than this of its own is needed: without it the others do not determine the fit."""


def standard_errors(problem: AttributionProblem) -> Values:
    """Returns the standard errors of the coefficients, 0 for those that LIME's penalty makes 0."""
    kind = SURROGATES[type(problem.request)]
    errors = []
    for row in fits(problem):
        coefficients = row.fit.coefficients
        used = np.flatnonzero(coefficients) if kind.fit is lasso else np.arange(len(coefficients))
        with apart(problem.model, row.masks.size):
            errors.append(jackknife(row, used, kind.fixed))
    return expand_features(problem, torch.from_numpy(np.stack(errors)))


def jackknife(row: FittedRow, used: npt.NDArray[np.int64], drawn: int) -> Float64[Numbers, "features"]:
    """Returns the standard error of each coefficient: 0 for those that are not ``used``, which a penalty makes 0.

    It follows from the fits in which the samples from number ``drawn`` on are left out, one at a time.

    A penalty keeps the signs of the coefficients, and those that are 0. Infinite where the samples left do not
    determine the fit, NaN where the coefficients are. Miller 1974, doi:10.1093/biomet/61.1.1.
    """
    masks, targets, weights, (coefficients, *_) = row
    if np.isnan(coefficients).any():
        return np.full_like(coefficients, np.nan)
    errors = np.zeros(len(coefficients))
    roots = np.sqrt(weights)
    intercept = weights @ (targets - masks @ coefficients) / weights.sum()
    residuals = roots * (targets - intercept - masks @ coefficients)
    design = np.column_stack([np.ones(len(masks)), masks[:, used]]) * roots[:, None]
    inverse = np.linalg.pinv(design)
    left = 1 - np.einsum("ij,ji->i", design, inverse)[drawn:]
    if np.linalg.matrix_rank(design) < design.shape[1] or not (left > _SINGULAR).all():
        errors[used] = np.inf
        return errors
    changes = inverse[1:, drawn:] * (residuals[drawn:] / left)
    if count := changes.shape[1]:
        squares = (changes - changes.mean(axis=1, keepdims=True)) ** 2
        errors[used] = np.sqrt((count - 1) / count * squares.sum(axis=1))
    return errors
