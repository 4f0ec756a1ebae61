"""Several requests at once, in as few passes as possible; each answered as if it were alone.

Requests whose inputs stack, and whose rows the model keeps apart, share one forward and one backward pass, and the
passes of explanations that they ask for alike. Whatever cannot be shared, or goes wrong when it is, runs alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from cutaway.engine.bundles import Numbered, bundled
from cutaway.engine.estimate import estimate
from cutaway.engine.patience import ENDLESS, Patience, longest
from cutaway.engine.plan import plan, rows
from cutaway.engine.primary import Primary
from cutaway.engine.rows import kept_apart
from cutaway.engine.run import answer, at_work, inspect, plain
from cutaway.engine.shared import Member, may_share, shared
from cutaway.engine.subject import Inputs, Subject
from cutaway.requests import InspectRequest
from cutaway.results import InspectResult, Timings

MOST_ELEMENTS = 1 << 20
"""The most numbers that the inputs of one pass have together: graphs grow with them, and past this much there is
nothing to gain."""


class Ask(NamedTuple):
    """One request.

    Attributes:
        request: the question.
        inputs: its tensors, on the model's device.
        patience: how long the caller waits.
    """

    request: InspectRequest
    inputs: Inputs
    patience: Patience = ENDLESS


Answer: TypeAlias = InspectResult | BaseException
"""What is sent, or why there is nothing to send."""


def inspect_all(subject: Subject, asks: Sequence[Ask]) -> list[Answer]:
    """One answer for each of ``asks``, in order; afterwards the model is as it was. Never raises: what goes wrong with
    one request is its own answer."""
    answers: dict[int, Answer] = {}
    if len(asks) > 1:
        for group in _groups(subject, asks):
            answers |= _together(subject, group)
    return [answers[number] if number in answers else _alone(subject, ask) for number, ask in enumerate(asks)]


def _alone(subject: Subject, ask: Ask) -> Answer:
    try:
        run = estimate if ask.request.dry_run else inspect
        return run(subject, ask.request, ask.inputs, patience=ask.patience)
    except BaseException as failure:  # a model that exits, or cancels, ends its own request, not the others
        return failure


Group: TypeAlias = dict[int, tuple[Ask, Member]]
"""Requests that may share a pass, by their number."""


def _groups(subject: Subject, asks: Sequence[Ask]) -> Iterator[Group]:
    """The groups of at least two; who is in none runs alone."""
    groups: dict[Hashable, Group] = {}
    with at_work(subject):
        for number, ask in enumerate(asks):
            member = _member(subject, ask)
            if member is not None:
                groups.setdefault(_kind(member), {})[number] = (ask, member)
    for stacking in groups.values():
        for group in _by_target(stacking):
            yield from (part for part in _parts(group) if len(part) > 1)


def _member(subject: Subject, ask: Ask) -> Member | None:
    if ask.patience.over:
        return None
    try:
        inputs = plain(ask.inputs)
        todo = plan(subject, ask.request, inputs)
        if not may_share(ask.request, todo):
            return None
        member = Member(ask.request, inputs, todo, slice(0, rows(inputs)))
        return member if kept_apart(subject, inputs, member.places, ask.request.target.output) else None
    except BaseException:  # alone it gets its own error
        return None


def _kind(member: Member) -> Hashable:
    """What inputs that stack have in common."""
    return tuple((name, tensor.dtype, tensor.shape[1:]) for name, tensor in member.inputs.items())


def _by_target(group: Group) -> Iterator[Group]:
    """Those that differentiate, apart by the output that they do it from: where one output's gradient arrives another's
    need not. The others go with any of them."""
    apart: dict[str, Group] = {}
    others: Group = {}
    for number, (ask, member) in group.items():
        to = apart.setdefault(ask.request.target.output, {}) if member.todo.differentiates else others
        to[number] = (ask, member)
    first, *rest = apart.values() or [{}]
    yield {**first, **others}
    yield from rest


def _parts(group: Group) -> Iterator[Group]:
    """``group`` in parts that are not too large for one pass."""
    part: Group = {}
    elements = 0
    for number, (ask, member) in group.items():
        size = sum(tensor.numel() for tensor in member.inputs.values())
        if part and elements + size > MOST_ELEMENTS:
            yield part
            part, elements = {}, 0
        part[number] = (ask, member)
        elements += size
    yield part


def _together(subject: Subject, group: Group) -> dict[int, Answer]:
    """The answers of those of ``group`` that could be answered together."""
    members, begin = [], 0
    for _, each in group.values():
        members.append(replace(each, rows=slice(begin, begin + rows(each.inputs))))
        begin += rows(each.inputs)
    timings = Timings()
    patience = longest([ask.patience for ask, _ in group.values()])
    answers: dict[int, Answer] = {}
    subject.passes.reset()
    try:
        with at_work(subject, patience):
            firsts = shared(subject, members, timings)
            known = bundled(subject, members, firsts, timings)
            for (number, (ask, _)), member, first, explained in zip(group.items(), members, firsts, known):
                answers[number] = _answer(subject, ask, member, first, explained, replace(timings))
    except BaseException:  # alone each gets its answer, or its own error
        return answers
    return answers


def _answer(
    subject: Subject, ask: Ask, member: Member, first: Primary, explained: Numbered, timings: Timings
) -> Answer:
    try:
        with subject.waited_for(ask.patience), subject.passes.aside():
            return answer(subject, ask.request, member.inputs, member.todo, first, {}, timings, explained)
    except BaseException as failure:
        return failure
