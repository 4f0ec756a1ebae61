"""A linear model of what the target does when features are replaced: drawn, weighted and fitted again.

Written ``m`` for a draw, [features] of 0 and 1, ``y`` for the target where the features with 0 are at their baseline,
and ``s`` for the draw's weight: the fit makes ``sum of s * (y - c0 - c m)^2`` least, for Lime with a penalty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cutaway.engine.evidence import Evidence, Reference, at_input, host
from cutaway.engine.finding import Finding
from cutaway.engine.witness import Pass, Question, Values, once, visits
from cutaway.requests import KernelShap, Surrogate
from cutaway.results import Cause

Numbers: TypeAlias = npt.NDArray[np.float64]

ENDS = 1e6
"""The weight that stands for infinity: of the draws with all features, and with none."""

PENALTY = 0.01
"""Of Lime's Lasso, for each unit of the weights' magnitudes."""

LASSO_TOLERANCE = 1e-4
LASSO_SWEEPS = 1000
"""When the Lasso is done: that is part of its answer."""


class Fit(NamedTuple):
    """A linear model.

    Attributes:
        coefficients: [features].
        terms: [features], how large the numbers are whose rounding they hold.
    """

    coefficients: Numbers
    terms: Numbers


# Draws.


@once
def draws(question: Question) -> Tensor:
    """[batch, samples, features], boolean: each example has its own draws, one example after the other."""
    numbers = torch.Generator().manual_seed(question.seed or 0)
    count, samples = question.features.count, cast(Surrogate, question.request).n_samples
    drawn = _coalitions if isinstance(question.request, KernelShap) else _coins
    found = []
    for _ in range(question.rows):
        each = drawn(count, numbers)
        found.append(torch.stack([next(each) for _ in range(samples)]))
        _lost(count, numbers)
    return torch.stack(found)


def _lost(count: int, numbers: torch.Generator) -> None:
    """What each fit draws and throws away: a seed for the loader that the draws are read through, and the first weights
    and bias of the layer that its coefficients are then put into."""
    torch.empty((), dtype=torch.int64).random_(generator=numbers)
    torch.empty(1, count).uniform_(generator=numbers)
    torch.empty(1).uniform_(generator=numbers)


def _coalitions(count: int, numbers: torch.Generator) -> Iterator[Tensor]:
    """All features; none; then a size ``k`` with probability ``(M - 1) / (k (M - k))``, and ``k`` features."""
    yield torch.ones(count, dtype=torch.bool)
    yield torch.zeros(count, dtype=torch.bool)
    sizes = torch.arange(count, dtype=torch.float32)
    chances = (count - 1) / (sizes * (count - sizes))
    chances[0] = 0
    chances /= chances.sum()
    while True:
        size = int(torch.multinomial(chances, 1, replacement=True, generator=numbers))
        order = torch.randn(1, count, generator=numbers)[0]
        yield order > order.sort().values[count - size - 1]


def _coins(count: int, numbers: torch.Generator) -> Iterator[Tensor]:
    """Each feature with probability one half."""
    while True:
        yield torch.bernoulli(torch.full((1, count), 0.5), generator=numbers)[0].bool()


# Points.


def points(question: Question) -> list[Values]:
    """What Captum visits: the batch, where there are several examples; then each example by itself, draw by draw."""
    whole = at_input(question) if question.rows > 1 else []
    return whole + [point for row, masks in enumerate(draws(question)) for point in _replaced(question, row, masks)]


def _replaced(question: Question, row: int, masks: Tensor) -> Iterator[Values]:
    """For each of ``masks`` example ``row``, with features that it leaves out at their baseline."""
    here = slice(row, row + 1)
    for mask in masks:
        point = {}
        for name, numbers in question.features.numbers.items():
            mine = numbers[here] if len(numbers) > 1 else numbers
            kept = mask.to(mine.device)[mine]
            point[name] = torch.where(kept, question.inputs[name][here], question.baselines[name][here])
        yield point


@once
def surrogate_passes(question: Question) -> Sequence[Pass]:
    """A pass for each draw, of all examples with their own draws. Each example runs by itself, as under Captum: other
    batches round otherwise."""
    masks = draws(question)
    by_row = [
        visits(_example(question, row), list(_replaced(question, row, masks[row])), differentiate=False)
        for row in range(question.rows)
    ]
    return [_together(each) for each in zip(*by_row)]


def _example(question: Question, row: int) -> Question:
    return replace(question, inputs={name: tensor[row : row + 1] for name, tensor in question.inputs.items()})


def _together(passes: Sequence[Pass]) -> Pass:
    names = passes[0].points
    return Pass(
        {name: torch.cat([each.points[name] for each in passes]) for name in names},
        output=torch.cat([each.output.reshape(1, *each.output.shape[each.output.ndim > 0 :]) for each in passes]),
    )


# References.


def kernel_shap(evidence: Evidence) -> Reference:
    """The coefficients of the least squares under the Shapley kernel: draws follow it, and the two ends weigh most."""
    return _fitted(evidence, _end_weights, least_squares)


def lime(evidence: Evidence) -> Reference:
    """The coefficients of the Lasso, each draw weighted by ``exp(-(1 - cos(x, x'))^2 / 2)``."""
    return _fitted(evidence, _nearness, lasso)


def _targets(evidence: Evidence) -> Numbers:
    """[samples, batch]; the fit gets them in float32, whatever they were."""
    question = evidence.question
    with torch.no_grad():
        scalars = [host(question.chosen.of(each.output.to(question.subject.device))) for each in evidence.passes]
    return np.asarray(torch.stack(scalars).float().numpy(), dtype=np.float64)


def _fitted(
    evidence: Evidence,
    weigh: Callable[[Evidence, Numbers, int], Numbers],
    fit: Callable[[Numbers, Numbers, Numbers], Fit],
) -> Reference:
    question = evidence.question
    targets = _targets(evidence)
    masks = draws(question).double().numpy()
    fits = [fit(masks[row], targets[:, row], weigh(evidence, masks[row], row)) for row in range(question.rows)]
    return Reference(
        _spread(question, np.stack([each.coefficients for each in fits])),
        _spread(question, np.stack([each.terms for each in fits])),
    )


def _end_weights(evidence: Evidence, masks: Numbers, row: int) -> Numbers:
    chosen = masks.sum(axis=1)
    return np.where((chosen == 0) | (chosen == masks.shape[1]), ENDS, 1.0)


def _nearness(evidence: Evidence, masks: Numbers, row: int) -> Numbers:
    end = _flat({name: evidence.question.inputs[name] for name in evidence.question.explained}, row)
    starts = [_flat(each.points, row) for each in evidence.passes]
    cosines = [float(end @ start / max(1e-8, float(end.norm())) / max(1e-8, float(start.norm()))) for start in starts]
    return np.exp(-((1 - np.array(cosines)) ** 2) / 2)


def _flat(values: Values, row: int) -> Tensor:
    return torch.cat([host(value[row]).reshape(-1) for value in values.values()])


def _spread(question: Question, by_row: Numbers) -> Values:
    """[batch, features] to each input's shape: an element has its feature's."""
    found = {}
    for name, numbers in question.features.numbers.items():
        shape = question.inputs[name].shape
        each = numbers.cpu().expand(shape).reshape(question.rows, -1)
        found[name] = torch.from_numpy(by_row).gather(1, each).reshape(shape)
    return found


# Fits.


def least_squares(masks: Numbers, targets: Numbers, weights: Numbers) -> Fit:
    """Weighted least squares with an intercept; of several solutions the shortest."""
    design, aims = _centred(masks, targets, weights)
    found, _, _, singular = np.linalg.lstsq(design, aims, rcond=1e-6)
    coefficients = np.asarray(found, dtype=np.float64)
    there = singular[singular > 1e-6 * singular[:1]]
    spread = float(there[0] / there[-1]) if len(there) else 1.0
    # What a solver in the data's own precision may be off by.
    return Fit(coefficients, np.full_like(coefficients, spread * float(np.abs(coefficients).max(initial=0))))


def lasso(masks: Numbers, targets: Numbers, weights: Numbers) -> Fit:
    """Coordinate descent on ``sum of s * (y - c0 - c m)^2 / (2 sum of s) + penalty * sum of |c|``, until a sweep moves
    no coefficient and no dual gap is left."""
    design, aims = _centred(masks, targets, weights * (len(weights) / weights.sum()))
    penalty, left = PENALTY * len(aims), aims.copy()
    coefficients, lengths = np.zeros(design.shape[1]), (design**2).sum(axis=0)
    for _ in range(LASSO_SWEEPS):
        before = coefficients.copy()
        for number in np.flatnonzero(lengths):
            column, old = design[:, number], coefficients[number]
            pull = column @ left + lengths[number] * old
            coefficients[number] = np.sign(pull) * max(abs(pull) - penalty, 0) / lengths[number]
            left -= column * (coefficients[number] - old)
        moved, largest = np.abs(coefficients - before).max(), np.abs(coefficients).max()
        if moved <= LASSO_TOLERANCE * largest and _gap(design, aims, left, coefficients, penalty) <= LASSO_TOLERANCE:
            break
    return Fit(coefficients, np.full_like(coefficients, np.abs(coefficients).max() + np.abs(targets).max()))


def _gap(design: Numbers, aims: Numbers, left: Numbers, coefficients: Numbers, penalty: float) -> float:
    """How far the primal lies above the dual, as a part of ``|y|^2``. Fercoq et al. 2015, arXiv:1505.03410."""
    pull = np.abs(design.T @ left).max()
    scale = min(1.0, penalty / pull) if pull else 1.0
    gap = (1 + scale**2) / 2 * (left @ left) - scale * (left @ aims) + penalty * np.abs(coefficients).sum()
    return float(gap / max(aims @ aims, np.finfo(float).tiny))


def _centred(masks: Numbers, targets: Numbers, weights: Numbers) -> tuple[Numbers, Numbers]:
    """Draws and targets without their weighted means, by the root of their weights: the intercept is gone."""
    shares, roots = weights / weights.sum(), np.sqrt(weights)
    return (masks - shares @ masks) * roots[:, None], (targets - shares @ targets) * roots


# Doubts.


def underdetermined(question: Question) -> Finding | None:
    """Whether the draws leave several fits open."""
    count = question.features.count
    for row, masks in enumerate(draws(question).double().numpy()):
        rank = int(np.linalg.matrix_rank(masks - masks.mean(axis=0)))
        if rank < count:
            return Finding(
                Cause.NOT_MOVED,
                f"the {len(masks)} draws of example {row} tell {rank} of {count} features apart, so many fits are as "
                f"good: more samples than {2 * count}, say, or fewer features by masks",
            )
    return None


def penalised(question: Question) -> Finding | None:
    """Whether Lime's draws leave several fits open, or its penalty nothing of one."""
    if several := underdetermined(question):
        return several
    evidence = Evidence(question, surrogate_passes(question))
    spans = np.ptp(_targets(evidence), axis=0)
    found = [value.reshape(question.rows, -1).abs().amax(dim=1) for value in lime(evidence).values.values()]
    for row, largest in enumerate(torch.stack(found).amax(dim=0).tolist()):
        if not largest and spans[row]:
            return Finding(
                Cause.NOT_MOVED,
                f"Lime's penalty leaves example {row} no weight at all, since between its draws the target moves by "
                f"{spans[row]:.2g} only: explain a logit in place of a probability, or larger features by masks",
            )
    return None
