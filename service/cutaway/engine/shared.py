"""One pass for several requests: the union of what they want is hooked, one forward, one backward, rows cut out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from cutaway.engine.absent import refuse_captures, settled
from cutaway.engine.globs import is_glob
from cutaway.engine.hooks import observing
from cutaway.engine.plan import Plan, rows
from cutaway.engine.primary import Primary, forward, refuse_entangled, taps, target
from cutaway.engine.rows import Place
from cutaway.engine.seen import Call, Seen
from cutaway.engine.subject import Inputs, Outputs, Subject, gradients
from cutaway.engine.targets import Chosen
from cutaway.engine.timed import timed
from cutaway.engine.wishes import Part, Wish
from cutaway.engine.witness import Values
from cutaway.requests import AtLayer, InspectRequest, Neuron, Point, TopK
from cutaway.results import Timings

Taps = dict[str, dict[Point, Wish]]


class Apart(Exception):
    """What was asked for cannot be cut out of a batch after all: each request has to run alone."""


@dataclass(frozen=True)
class Member:
    """A request that shares its pass with others.

    Attributes:
        request: the question.
        inputs: its own rows.
        todo: what it needs.
        rows: where they lie in the batch.
    """

    request: InspectRequest
    inputs: Inputs
    todo: Plan
    rows: slice

    @property
    def places(self) -> set[Place]:
        """Everything inside the model that it looks at, in the shared pass or in its explanations."""
        layers = {(each.layer, Point.OUTPUT) for each in self.request.attributions if isinstance(each, AtLayer)}
        return {(name, point) for name, wishes in self.todo.taps.items() for point in wishes} | layers


def may_share(request: InspectRequest, todo: Plan) -> bool:
    """Whether the request's pass can be others' too. Edits make it a pass of another model; gradients of parameters
    are sums over the batch; a top-k target takes several backward passes, and a neuron is read inside the model."""
    return not (
        request.dry_run
        or todo.edits
        or todo.parameters
        or isinstance(request.target, (TopK, Neuron))
        or any(is_glob(name) for name in todo.taps)  # an operator's: which it means is known afterwards
    )


def shared(subject: Subject, members: Sequence[Member], timings: Timings) -> list[Primary]:
    """Run one forward pass and at most one backward pass for all of ``members``.

    Returns:
        For each what it would have seen alone.

    Raises:
        Apart: that cannot be told.
        CutawayError: one of them asks for what is not there.
    """
    inputs = {name: torch.cat([each.inputs[name] for each in members]) for name in members[0].inputs}
    total, todo = rows(inputs), _union([each.todo for each in members])
    given = {**inputs, **{name: inputs[name].detach().clone().requires_grad_() for name in todo.gradients_of}}
    wanted = _merged([taps(subject, each.request, each.todo) for each in members])
    chosen: list[tuple[Chosen, ...]] = []
    found: Values = {}
    dice = torch.get_rng_state()
    with observing(subject.tree, wanted, batch=total) as seen:
        seen.missing = todo.missing
        with timed(timings, "forward_ms"), torch.set_grad_enabled(todo.differentiates):
            outputs = forward(subject, given, seen)
        if any(output.shape[:1] != (total,) for output in outputs.values()):
            raise Apart
        read: list[Tensor | None] = []
        for each in members:
            own = {name: output[each.rows] for name, output in outputs.items()}
            scalars, of = target(subject, each.request, own, seen, each.todo, rows(each.inputs))
            chosen.append(scalars)
            read.append(of)
        if todo.differentiates:
            with timed(timings, "backward_ms"):
                found = _backward(members, chosen, read, {name: given[name] for name in todo.gradients_of}, seen)
        entangled = seen.entangled
    outputs = {name: output.detach().clone() for name, output in outputs.items()}
    if entangled:
        refuse_entangled(subject, inputs, outputs, todo, dice)
    return [
        _cut(subject, each, seen, wanted, outputs, found, scalars, of, total)
        for each, scalars, of in zip(members, chosen, read)
    ]


def _union(plans: Sequence[Plan]) -> Plan:
    """One that does what all of ``plans`` do, but for places inside the model."""
    stops = all(each.missing is not None for each in plans)
    return replace(
        plans[0],
        gradients_of=tuple(dict.fromkeys(name for each in plans for name in each.gradients_of)),
        differentiates=any(each.differentiates for each in plans),
        missing={place for each in plans for place in each.missing or ()} if stops else None,
    )


def _merged(asked: Sequence[Taps]) -> Taps:
    """What all of them want. Where two want other parts of a tensor, all of it is taken, and cut afterwards."""
    found: Taps = {}
    for one in asked:
        for name, wishes in one.items():
            there = found.setdefault(name, {})
            for point, wish in wishes.items():
                known = there.get(point)
                there[point] = _of_any_rows(wish) if known in (None, wish) else Wish()
    return found


def _of_any_rows(wish: Wish) -> Wish:
    """``wish``, which may be of some rows: those are its request's own, and are taken afterwards."""
    return Wish() if any(each.axis <= 0 for each in wish.slices) else wish


def _backward(
    members: Sequence[Member],
    chosen: Sequence[Sequence[Chosen]],
    read: Sequence[Tensor | None],
    inputs: Values,
    seen: Seen,
) -> Values:
    """The gradients at ``inputs``; those inside the model reach the hooks on the way."""
    asking = [
        (scalars, of) for each, scalars, of in zip(members, chosen, read) if each.todo.differentiates and of is not None
    ]
    wanted = [*map(get_gradient_edge, inputs.values()), *seen.gradient_roots]
    if not wanted:
        return {}
    if not all(of.requires_grad for _, of in asking):
        raise Apart  # the request that is at fault says so alone
    arrived = gradients(torch.cat([each.of(of) for (each,), of in asking]), wanted)
    return {name: gradient for name, gradient in zip(inputs, arrived) if gradient is not None}


def _cut(
    subject: Subject,
    member: Member,
    seen: Seen,
    wanted: Taps,
    outputs: Outputs,
    found: Values,
    chosen: tuple[Chosen, ...],
    read: Tensor | None,
    total: int,
) -> Primary:
    own = Seen()
    own.missing, own.operators = member.todo.missing if not seen.stopped else set(), seen.operators
    for name, wishes in taps(subject, member.request, member.todo).items():
        own.calls[name] = [_call(call, wishes, wanted[name], member.rows, total) for call in seen.calls[name]]
    settled_taps = settled(member.todo, own)
    refuse_captures(settled_taps, own, subject.tree)
    if any(gradient.shape[:1] != (total,) for gradient in found.values()):
        raise Apart
    return Primary(
        own,
        settled_taps,
        {name: output[member.rows] for name, output in outputs.items()},
        next((each.indices for each in chosen), None),
        None if read is None else chosen[0].of(read.detach()).double(),
        {name: found[name][member.rows] for name in member.todo.gradients_of if name in found},
        {},
    )


def _call(call: Call, wishes: dict[Point, Wish], taken: dict[Point, Wish], rows: slice, total: int) -> Call:
    """What ``call`` showed of some rows."""
    own = Call(call.number)
    own.kinds = call.kinds
    for point, path, part in call.noted():
        if point in wishes and wishes[point].takes(call.number, path):
            own.put(point, path, None if part is None else _part(part, wishes[point], taken[point], rows, total))
    return own


def _part(part: Part, wish: Wish, taken: Wish, rows: slice, total: int) -> Part:
    if any(each is not None and each.shape[:1] != (total,) for each in part):
        raise Apart
    cut = Part(*(None if each is None else each[rows] for each in part))  # type: ignore[arg-type]
    return cut if taken == wish else wish.of(cut.values, "a capture")  # alone it is told which
