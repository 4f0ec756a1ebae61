"""Changes of the target where one unit of a layer is replaced: a unit is an element of what the layer returns, behind
the batch axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import TypeAlias, cast

import torch
from torch import Tensor

from cutaway.engine.edits import Override, same
from cutaway.engine.evidence import Evidence, Reference, at_input, host, layer_value_name
from cutaway.engine.finding import Finding
from cutaway.engine.references.neurons import calls
from cutaway.engine.seen import Call
from cutaway.engine.witness import Pass, Question, Values, visits
from cutaway.requests import LayerFeatureAblation, Point
from cutaway.results import Cause

Change: TypeAlias = Callable[[Tensor], Tensor]
"""From values to those that replace them."""


# Points: all of Captum's passes are at the input.


def ablating(question: Question) -> list[Values]:
    """A pass that reads the layer, one that puts back what was read, and one for each unit."""
    return at_input(question) * (2 + _returned(calls(question)[-1])[0].numel())


def permuting(question: Question) -> list[Values]:
    """The same; where there are no two rows none for the units."""
    return ablating(question) if question.rows > 1 else at_input(question) * 2


# Passes of our own.


def ablated(question: Question) -> Sequence[Pass]:
    """A pass at the input; then for each unit one in which it is the baseline."""
    baseline = cast(LayerFeatureAblation, question.request).baseline
    return _replacing(question, repeat(lambda unit: torch.full_like(unit, baseline)))


def permuted(question: Question) -> Sequence[Pass]:
    """A pass at the input; then for each unit one with its rows in another order; no two rows, no order."""
    return _replacing(question, _exchanges(question) if question.rows > 1 else iter(()))


def _exchanges(question: Question) -> Iterator[Change]:
    numbers = torch.Generator().manual_seed(question.seed or 0)
    while True:
        order = torch.randperm(question.rows, generator=numbers)
        if not torch.equal(order, torch.arange(question.rows)):
            yield lambda unit, order=order: unit[order.to(unit.device)]  # type: ignore[misc]


def _replacing(question: Question, changes: Iterator[Change]) -> Sequence[Pass]:
    passes = [_changed(question, lambda output: output)]
    apart = replace(question, layer="")  # what the layer returned is kept once, and not again for each unit
    points, further = passes[0].points, passes[0].further  # and neither is what went in
    for number, change in zip(range(_returned(passes[0].layer[0])[0].numel()), changes):
        seen = _changed(apart, _of_unit(number, change), question.layer)
        passes.append(replace(seen, points=points, further=further))
    return passes


def _of_unit(number: int, change: Change) -> Change:
    def changed(output: Tensor) -> Tensor:
        units = output.flatten(1) if output.ndim > 1 else output.unsqueeze(1)
        new = units.clone()
        new[:, number] = change(units[:, number])
        return new.reshape(output.shape)

    return changed


def _changed(question: Question, change: Change, layer: str = "") -> Pass:
    edit = Override(at=Point.OUTPUT, call=0, change=change)
    edits = {layer or question.layer: [(0, edit)]}
    return visits(question, at_input(question), differentiate=False, edits=edits)[0]


def _returned(call: Call) -> Tensor:
    """The one tensor that the layer returned."""
    return next(iter(call.at(Point.OUTPUT).values()))


# References.


def drop(evidence: Evidence) -> Reference:
    """``f(x) - f(x with the unit replaced)``; 0 where nothing replaces it."""
    question = evidence.question
    shape = _returned(evidence.passes[0].layer[0]).shape
    name = layer_value_name(question.layer, "")
    if len(evidence.passes) == 1:
        nothing = {name: torch.zeros(shape, dtype=torch.float64)}
        return Reference(nothing, nothing)
    with torch.no_grad():
        read = [each.output.to(question.subject.device) for each in evidence.passes]
        first, *others = (host(question.chosen.of(output)) for output in read)
    replaced = torch.stack(others, dim=1)  # [batch, units]
    before = first.unsqueeze(1)
    return Reference({name: (before - replaced).reshape(shape)}, {name: (before.abs() + replaced.abs()).reshape(shape)})


# What Captum overlooks.


def overlooked(question: Question) -> Finding | None:
    """Captum puts one tensor in place of whatever the layer returns, lets the model change it, and cuts units out of it
    by multiplying them by 0."""
    returned = calls(question)
    return _reused(question, len(returned)) or _infinite(question, returned) or _overwritten(question)


def _infinite(question: Question, returned: Sequence[Call]) -> Finding | None:
    if all(bool(_returned(call).isfinite().all()) for call in returned):
        return None
    return Finding(
        Cause.NOT_FINITE,
        f"the layer {question.layer!r} returns NaN or infinities, and Captum replaces a unit by way of multiplying it "
        "by 0, which leaves NaN: explain a layer behind it that returns numbers",
    )


def _reused(question: Question, times: int) -> Finding | None:
    if times < 2:
        return None
    return Finding(
        Cause.MODULE_REUSED,
        f"the layer {question.layer!r} was called {times} times in one forward, and Captum puts what the last call "
        "returned in place of each: build the model with a module for each call",
    )


def _overwritten(question: Question) -> Finding | None:
    """Whether the model changes in place what the layer returned, and another time changes it further."""
    kept: list[Tensor] = []

    def keep(output: Tensor) -> Tensor:
        kept.append(output)
        return output

    first = _changed(question, keep)
    if same(_returned(first.layer[0]), kept[0].cpu()):
        return None
    again = _changed(question, lambda _: kept[0].clone())
    if same(first.output, again.output):
        return None
    return Finding(
        Cause.OTHER_PASSES,
        f"the model changes in place what {question.layer!r} returns, and Captum goes on with what has become of it: "
        "explain the module that does so, or build it with inplace=False",
    )
