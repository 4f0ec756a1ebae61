"""Explanations that several requests of a batch ask for alike, computed by Captum at once and cut apart by rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.engine.attributions import answered, judged, questions
from cutaway.engine.balance import Balance
from cutaway.engine.methods import method_of
from cutaway.engine.primary import Primary
from cutaway.engine.seen import Call
from cutaway.engine.shared import Apart, Member
from cutaway.engine.subject import Outputs, Subject
from cutaway.engine.targets import Chosen, same_kind
from cutaway.engine.wishes import Part
from cutaway.engine.witness import Pass, Question, Values
from cutaway.errors import CutawayError
from cutaway.requests import Attribution, CheckRequest
from cutaway.results import AttributionResult, Timings

Numbered = dict[int, AttributionResult]
"""Explanations by their number in the request."""


@dataclass(frozen=True)
class _Asked:
    """One explanation that one member asks for.

    Attributes:
        member: whose, by number.
        index: which of its explanations.
        question: what.
        check: how it is checked.
    """

    member: int
    index: int
    question: Question
    check: CheckRequest


def bundled(subject: Subject, members: Sequence[Member], firsts: Sequence[Primary], timings: Timings) -> list[Numbered]:
    """The explanations that at least two of ``members`` ask for alike, member by member; all else, and what goes wrong
    together, is left to each alone."""
    found: list[Numbered] = [{} for _ in members]
    bundles: list[list[_Asked]] = []
    for asked in _open(subject, members, firsts):
        like = next((each for each in bundles if _alike(each[0], asked)), None)
        if like is None:
            bundles.append([asked])
        else:
            like.append(asked)
    for bundle in bundles:
        if len(bundle) > 1:
            try:
                with subject.guard.swept():
                    results = _explained(bundle, [firsts[each.member].outputs for each in bundle], timings)
            except (Apart, CutawayError):
                continue  # alone each of them gets its answer, or its own error
            for each, result in zip(bundle, results):
                found[each.member][each.index] = result
    return found


def _open(subject: Subject, members: Sequence[Member], firsts: Sequence[Primary]) -> Iterator[_Asked]:
    for number, (member, first) in enumerate(zip(members, firsts)):
        for index, attribution in enumerate(member.request.attributions):
            if member.request.explain_if is None and _may_be_bundled(attribution):
                try:
                    made = list(
                        questions(subject, member.request, attribution, member.inputs, member.todo, first.outputs)
                    )
                except CutawayError:
                    continue
                if len(made) == 1:
                    yield _Asked(number, index, made[0], member.request.check)


def _may_be_bundled(attribution: Attribution) -> bool:
    """Whether rows stay apart in Captum's passes, and nothing is drawn or chosen for the batch as a whole."""
    return (
        method_of(attribution).by_row
        and attribution.noise is None
        and not attribution.metrics
        and getattr(attribution, "max_delta", None) is None
    )


def _alike(one: _Asked, other: _Asked) -> bool:
    """Whether one run of Captum can answer both: the same method with the same parameters. What each row has of its
    own, its baseline and its class, may differ."""
    pairs = (one.question, other.question)
    return (
        one.check == other.check
        and same_kind(*(each.chosen for each in pairs))
        and _same(*(replace(each.request, **_of_rows(each.request)) for each in pairs))
        and all(len(numbers) == 1 for numbers in one.question.features.numbers.values())
    )


def _of_rows(attribution: Attribution) -> dict[str, Any]:
    """What each row has of its own, blank."""
    return {name: None for name in ("target", "baselines") if name in attribution.__dataclass_fields__}


def _same(one: Any, other: Any) -> bool:
    """Equality, of arrays too."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if is_dataclass(one):
        return all(_same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _explained(bundle: Sequence[_Asked], outputs: Sequence[Outputs], timings: Timings) -> list[AttributionResult]:
    whole, check = _joined([each.question for each in bundle]), bundle[0].check
    read = {name: torch.cat([each[name] for each in outputs]) for name in outputs[0]}
    values, passes, balanced = answered(whole, check.mode, read, timings)
    results, begin = [], 0
    for each, own in zip(bundle, outputs):
        rows = slice(begin, begin + each.question.rows)
        begin = rows.stop
        results.append(
            judged(
                each.question,
                _cut_values(values, rows, whole.rows),
                _own_passes(each.question, passes, rows, whole.rows),
                None if balanced is None else _cut_balance(balanced, rows),
                check,
                own,
                timings,
            )
        )
    return results


def _joined(parts: Sequence[Question]) -> Question:
    first = parts[0]
    features = replace(first.features, baselines=_side_by_side([each.features.baselines for each in parts]))
    return replace(
        first,
        inputs=_side_by_side([each.inputs for each in parts]),
        chosen=Chosen.of_all([each.chosen for each in parts]),
        baselines=_side_by_side([each.baselines for each in parts]),
        features=features,
    )


def _side_by_side(parts: Sequence[Mapping[str, Tensor]]) -> Values:
    return {name: torch.cat([each[name] for each in parts]) for name in parts[0]}


def _cut_values(values: Values, rows: slice, total: int) -> Values:
    if any(value.shape[:1] != (total,) for value in values.values()):
        raise Apart
    return {name: value[rows] for name, value in values.items()}


def _cut_balance(balanced: Balance, rows: slice) -> Balance:
    return Balance(*(each[rows] for each in (balanced.at_input, balanced.at_baseline, balanced.total, balanced.mass)))


def _own_passes(question: Question, passes: Sequence[Pass], rows: slice, total: int) -> list[Pass]:
    """What the hooks saw of some rows. Where a pass may have several points, all of them make one: a few rows of a
    large batch were in many passes."""
    method = method_of(question.request)
    cut = [_cut_pass(one, rows, total) for one in passes]
    return [_one_pass(cut)] if method.own is None and method.together(question) > 1 and len(cut) > 1 else cut


def _one_pass(passes: Sequence[Pass]) -> Pass:
    """The same rows, one pass after the other, as one."""
    first = passes[0]
    if len({(*each.gradients, each.cotangent is None, len(each.layer)) for each in passes}) > 1:
        raise Apart
    cotangents = [each.cotangent for each in passes if each.cotangent is not None]
    return Pass(
        points=_side_by_side([each.points for each in passes]),
        further=[torch.cat(each) for each in zip(*(each.further for each in passes))],
        output=torch.cat([each.output for each in passes]),
        cotangent=torch.cat(cotangents) if cotangents else None,
        gradients=_side_by_side([{name: each.gradients[name] for name in first.gradients} for each in passes]),
        layer=[_one_call(calls) for calls in zip(*(each.layer for each in passes))],
    )


def _one_call(calls: Sequence[Call]) -> Call:
    own = Call(calls[0].number)
    own.kinds = calls[0].kinds
    shown = [{(point, path): part for point, path, part in call.noted()} for call in calls]
    for (point, path), part in shown[0].items():
        parts = [each.get((point, path)) for each in shown]
        if part is None or any(each is None for each in parts):
            raise Apart
        own.put(point, path, Part(torch.cat([each.values for each in parts if each is not None])))
    return own


def _cut_pass(one: Pass, rows: slice, total: int) -> Pass:
    """What the hooks saw of some rows, in a pass that ran the batch once or several times over, one after the other."""

    def cut(tensor: Tensor) -> Tensor:
        times, rest = divmod(len(tensor), total) if tensor.ndim else (0, 1)
        if rest or not times:
            raise Apart
        return tensor.reshape(times, total, *tensor.shape[1:])[:, rows].reshape(-1, *tensor.shape[1:])

    return Pass(
        points={name: cut(tensor) for name, tensor in one.points.items()},
        further=[cut(tensor) for tensor in one.further],
        output=cut(one.output),
        cotangent=None if one.cotangent is None else cut(one.cotangent),
        gradients={name: cut(tensor) for name, tensor in one.gradients.items()},
        layer=[_cut_call(call, cut) for call in one.layer],
    )


def _cut_call(call: Call, cut: Callable[[Tensor], Tensor]) -> Call:
    own = Call(call.number)
    own.kinds = call.kinds
    for point, path, part in call.noted():
        own.put(point, path, None if part is None else Part(cut(part.values)))
    return own
