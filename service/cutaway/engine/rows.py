"""Whether rows of several requests may share a batch: proven by passes, once for each kind of inputs and each place.

A model keeps its rows apart where a row's outputs and gradients are the same whatever stands beside it, and lie where
the row lies along axis 0. The proof runs four small batches of four rows, of which the first is real and the others are
made from it:

    first    first, second    second, third, fourth    third

The fourth is louder than all, and masks, ids and lengths are cut short in the third: a model that scales by the largest
element of its batch, or cuts it to the longest row, gives itself away.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from cutaway.engine.hooks import observing
from cutaway.engine.seen import Seen
from cutaway.engine.subject import Inputs, Subject, gradients
from cutaway.engine.wishes import watching
from cutaway.errors import CutawayError
from cutaway.requests import POINTS, Point
from cutaway.results import Warning, WarningCode

Place: TypeAlias = tuple[str, Point]
"""A module's name or an operator's address, and a point of it."""

_POWER = 0.6
"""How far what two batches say of one row may be apart, as a power of the data type's unit of rounding: float32's is
7e-5. Batches of other sizes are computed by other kernels, which round otherwise."""


class Spot(NamedTuple):
    """Where a pass showed a tensor: at a place inside, or, without one, outside of the model."""

    place: Place | None
    which: Hashable


Shown: TypeAlias = dict[Spot, Tensor]


@dataclass
class Proof:
    """What was found out about one kind of inputs.

    Attributes:
        outside: whether outputs, and gradients at the inputs, keep rows apart; None before anybody looked.
        inside: which places do, of those that were looked at.
        differs: whether a row was seen to be another in other company; rather than nothing seen.
    """

    outside: bool | None = None
    inside: dict[Place, bool] = field(default_factory=dict)
    differs: bool = False


def kept_apart(subject: Subject, inputs: Inputs, places: Iterable[Place], source: str = "") -> bool:
    """Whether the model keeps rows of such ``inputs`` apart: in its outputs, in the gradients of the output ``source``,
    and at all of ``places``. What is not known is found out, by passes that no request counts."""
    proof: Proof = subject.traits.setdefault(_key(inputs, source), Proof())
    unknown = [place for place in places if place not in proof.inside]
    if proof.outside is None or (proof.outside and unknown):
        _find_out(subject, inputs, unknown, source, proof)
    return bool(proof.outside) and all(proof.inside[place] for place in places)


def coupling(subject: Subject, inputs: Inputs) -> tuple[Warning, ...]:
    """A warning for several rows of a model that is known to couple them."""
    proof = subject.traits.get(_key(inputs, ""))
    if len(next(iter(inputs.values()))) == 1 or proof is None or not proof.differs:
        return ()
    return (
        Warning(
            WarningCode.ROWS_NOT_INDEPENDENT,
            "",
            "a row's outputs or gradients are others in other company: rows of one request influence each other, so "
            "send one row a request; requests themselves are answered one by one",
        ),
    )


def _key(inputs: Inputs, source: str) -> Hashable:
    return "rows", source, tuple((name, tensor.dtype, tensor.ndim) for name, tensor in inputs.items())


def _find_out(subject: Subject, inputs: Inputs, places: Sequence[Place], source: str, proof: Proof) -> None:
    spots = _compared(subject, inputs, places, source)
    outside = _outside(spots)
    proof.outside = outside is True
    # Near a kink, rounding alone turns a unit over: then rows are taken not to be kept apart, but nobody is warned.
    proof.differs = outside is False and _outside(_compared(subject, _other(inputs), (), source)) is False
    for place in places:  # one that nothing was seen of is none that is known
        found = [apart for spot, apart in spots.items() if spot.place == place]
        proof.inside[place] = bool(found) and all(found)


def _outside(spots: dict[Spot, bool]) -> bool | None:
    """Whether outputs and gradients at inputs keep rows apart; None where nothing was seen."""
    found = [apart for spot, apart in spots.items() if spot.place is None]
    return all(found) if found else None


def _compared(subject: Subject, inputs: Inputs, places: Sequence[Place], source: str) -> dict[Spot, bool]:
    """Where passes of the four batches showed something, and whether it was the same of each row in each of them; empty
    where nothing can be told."""
    rows = _four(inputs)
    if rows is None:
        return {}
    first, second, third, fourth = rows
    batches = ([first], [first, second], [second, third, fourth], [third])
    try:
        with subject.passes.aside(), subject.dice():
            alone, pair, three, other = (_shown(subject, _joined(each), places, source) for each in batches)
    except CutawayError:
        return {}  # a model that cannot run on these rows proves nothing
    twice = [(alone, 0, pair, 0), (pair, 1, three, 0), (three, 1, other, 0)]
    seen = dict.fromkeys([*alone, *pair, *three, *other])
    return {spot: all(_agree(spot, *each) for each in twice) for spot in seen}


def _agree(spot: Spot, one: Shown, row: int, other: Shown, its: int) -> bool:
    """Whether two passes show the same of a row that is number ``row`` in the one and ``its`` in the other."""
    if spot not in one or spot not in other:
        return False
    sides = ((one[spot], _rows(one)), (other[spot], _rows(other)))
    if any(tensor.shape[:1] != (rows,) for tensor, rows in sides):
        return False
    return _close(one[spot][row], other[spot][its])


def _rows(shown: Shown) -> int:
    return len(next(iter(shown.values())))  # the first of the inputs


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or not one.is_floating_point():
        return torch.equal(one, other)
    scale = float(torch.nan_to_num(one.double()).abs().max()) if one.numel() else 0.0
    allowed = torch.finfo(one.dtype).eps ** _POWER * scale
    return torch.allclose(one.double(), other.double(), rtol=0, atol=allowed, equal_nan=True)


def _shown(subject: Subject, inputs: Inputs, places: Sequence[Place], source: str) -> Shown:
    taps = {name: watching(*(point for each, point in places if each == name)) for name, _ in places}
    floating = [name for name, tensor in inputs.items() if tensor.is_floating_point()]
    given = {**inputs, **{name: inputs[name].detach().clone().requires_grad_() for name in floating}}
    shown = {Spot(None, ("input", name)): tensor for name, tensor in inputs.items()}
    with observing(subject.tree, taps) as seen:
        with seen.forward():
            outputs = subject.run(given)
        shown |= {Spot(None, ("output", name)): output.detach().clone() for name, output in outputs.items()}
        read = outputs.get(source, next(iter(outputs.values())))
        if read.is_floating_point() and read.requires_grad:
            arrived = gradients(read.reshape(-1), [*(given[name] for name in floating), *seen.gradient_roots])
            found = {name: each for name, each in zip(floating, arrived) if each is not None}
            shown |= {Spot(None, ("gradient", name)): each for name, each in found.items()}
    return shown | dict(_inside(seen))


def _inside(seen: Seen) -> Iterator[tuple[Spot, Tensor]]:
    for name, calls in seen.calls.items():
        for number, call in enumerate(calls):
            for point in POINTS:
                for path, tensor in call.at(point).items():
                    yield Spot((name, point), (number, path)), tensor


def _joined(rows: Sequence[Inputs]) -> Inputs:
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


def _four(inputs: Inputs) -> tuple[Inputs, ...] | None:
    """The first row, and three made from it; None where nothing can be varied, and so nothing told."""
    first = {name: tensor[:1] for name, tensor in inputs.items()}
    others = {name: _varied(tensor) for name, tensor in first.items()}
    if all(torch.equal(first[name], each) for name, made in others.items() for each in made):
        return None
    return first, *({name: made[number] for name, made in others.items()} for number in range(3))


def _other(inputs: Inputs) -> Inputs:
    """Another row than the first, as real as can be made of it."""
    return {name: _varied(tensor[:1])[0] for name, tensor in inputs.items()}


def _varied(row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    turned = row.reshape(-1).flip(0).reshape(row.shape)
    if row.is_floating_point():
        size = float(row.abs().max()) or 1.0
        ramp = torch.linspace(-0.1, 0.1, row.numel(), device=row.device).reshape(row.shape).to(row.dtype) * size
        return turned / 2 + ramp, ramp - row / 3, 3 * row + 5 * ramp
    return turned, _cut_short(row), turned


def _cut_short(row: Tensor) -> Tensor:
    """Whole numbers with nought in their second half, which ends masks and pads sequences; one number is halved, as a
    length is."""
    short = row.clone()
    if row.ndim > 1:
        short[..., (row.shape[-1] + 1) // 2 :] = 0
    if torch.equal(short, row):
        short = row // 2 if row.dtype is not torch.bool else torch.zeros_like(row)
    return short if not torch.equal(short, row) else torch.ones_like(row)
