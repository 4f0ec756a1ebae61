"""Changes of the target where parts of the inputs are replaced: forward passes only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import torch
from torch import Tensor

from cutaway.engine.evidence import Evidence, Reference, at_input, host
from cutaway.engine.features import Region, regions
from cutaway.engine.witness import Question, Values
from cutaway.requests import ShapleyValues, ShapleyValueSampling

# Points.


def ablated(question: Question) -> list[Values]:
    """The input; then, for each region, the input with the baseline there."""
    return at_input(question) + [
        _replaced(question, region, question.baselines) for region in regions(question.features, question.inputs)
    ]


def permuted(question: Question) -> list[Values]:
    """The input; then, for each feature, the input with the feature's rows in another order; no two rows, no order."""
    points = at_input(question)
    if question.rows < 2:
        return points
    numbers = torch.Generator().manual_seed(question.seed or 0)
    for region in regions(question.features, question.inputs):
        others = {
            name: question.inputs[name][_other_order(question.rows, numbers)]
            for name, inside in region.items()
            if bool(inside.any())
        }
        points.append(_replaced(question, region, others))
    return points


def _other_order(rows: int, numbers: torch.Generator) -> Tensor:
    """An order of the rows that is not the one they have."""
    while True:
        order = torch.randperm(rows, generator=numbers)
        if not torch.equal(order, torch.arange(rows)):
            return order


def added(question: Question) -> list[Values]:
    """The baseline; then, for each order, the baseline with one feature of the input more each time."""
    start = {name: question.baselines[name] for name in question.explained}
    points = [start]
    each_region = list(regions(question.features, question.inputs))
    for order in orders(question):
        now = start
        for number in order:
            now = {
                name: torch.where(inside, question.inputs[name], now[name])
                for name, inside in each_region[number].items()
            }
            points.append(now)
    return points


def orders(question: Question) -> Iterator[tuple[int, ...]]:
    """The orders in which features are added: all of them, or as many as asked for, drawn from the seed."""
    count = question.features.count
    if isinstance(question.request, ShapleyValues):
        yield from _all_orders(tuple(range(count)))
        return
    numbers = torch.Generator().manual_seed(question.seed or 0)
    for _ in range(cast(ShapleyValueSampling, question.request).n_samples):
        yield tuple(torch.randperm(count, generator=numbers).tolist())


def _all_orders(left: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if not left:
        yield ()
    for place, first in enumerate(left):
        for rest in _all_orders(left[:place] + left[place + 1 :]):
            yield (first, *rest)


def _replaced(question: Question, region: Region, others: Mapping[str, Tensor]) -> Values:
    return {
        name: torch.where(inside, others[name], question.inputs[name]) if name in others else question.inputs[name]
        for name, inside in region.items()
    }


# References.


def change(evidence: Evidence) -> Reference:
    """``f(x) - f(x with the region replaced)``, at each element the mean over the regions that it lies in."""
    question = evidence.question
    at_points = _scalars(evidence)
    totals, terms, times = (_nothing(question) for _ in range(3))
    for region, scalar in zip(regions(question.features, question.inputs), at_points[1:]):
        for name, inside in region.items():
            here = host(inside)
            totals[name] += here * _by_row(at_points[0] - scalar, here)
            terms[name] += here * _by_row(at_points[0].abs() + scalar.abs(), here)
            times[name] += here
    counts = {name: each.clamp(min=1) for name, each in times.items()}
    return Reference(
        {name: totals[name] / counts[name] for name in totals}, {name: terms[name] / counts[name] for name in terms}
    )


def shapley(evidence: Evidence) -> Reference:
    """``f(with the feature) - f(without it)``, the mean over the orders in which features were added."""
    question = evidence.question
    at_points = _scalars(evidence)
    sums, magnitudes = (torch.zeros(question.features.count, question.rows, dtype=torch.float64) for _ in range(2))
    taken = iter(at_points[1:])
    walks = list(orders(question))
    for order in walks:
        before = at_points[0]
        for number in order:
            after = next(taken)
            sums[number] += after - before
            magnitudes[number] += after.abs() + before.abs()
            before = after
    return Reference(_spread(question, sums / len(walks)), _spread(question, magnitudes / len(walks)))


def _scalars(evidence: Evidence) -> Tensor:
    """[passes, batch], the target's scalar in each pass."""
    question = evidence.question
    read = [each.output.to(question.subject.device) for each in evidence.passes]
    with torch.no_grad():
        return torch.stack([host(question.chosen.of(output)) for output in read])


def _nothing(question: Question) -> Values:
    return {name: torch.zeros(question.inputs[name].shape, dtype=torch.float64) for name in question.features.explained}


def _by_row(scalars: Tensor, like: Tensor) -> Tensor:
    return scalars.reshape(-1, *[1] * (like.ndim - 1))


def _spread(question: Question, by_feature: Tensor) -> Values:
    """[features, batch] to each input's shape: an element has its feature's."""
    found = {}
    for name, numbers in question.features.numbers.items():
        shape = question.inputs[name].shape
        each = numbers.cpu().expand(shape).reshape(question.rows, -1)
        found[name] = by_feature.T.gather(1, each).reshape(shape)
    return found
