"""What happens to the tensors at each place of one forward pass, and on the way back.

Edits are done by hand. Where a gradient is edited or looked at, the graph is cut: what follows works on a tensor of its
own, and the gradient that arrives there is edited, noted and handed on by hand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from cutaway.contract.errors import Reason
from cutaway.contract.requests import Capture, Edit, Mix, Point
from tests.fuzz.arithmetic import Part, Refused, edited, kept
from tests.fuzz.interpreter import Spot, Tensors
from tests.fuzz.places import matches

Notes: TypeAlias = dict[tuple[Point, str], Part]
"""What one call showed, by point and path."""

Key: TypeAlias = tuple[str, int, Point, str]
"""Name, call, point, path."""


class Effect(IntEnum):
    """What an edit did; the last is what remains of several."""

    NEVER_MADE = 0
    NOTHING = 1
    ROUNDING = 2
    CHANGED = 3


class Cut(NamedTuple):
    """A place where the graph was cut: the tensor that arrived, what the model went on with, and who edits the gradient
    there or looks at it."""

    before: Tensor
    after: Tensor
    key: Key
    edits: Sequence[tuple[int, Edit]]
    wish: Capture | None


@dataclass
class Done:
    """What became of a tensor at a place: what goes on, what each edit did, what was noted, what could not be."""

    tensor: Tensor
    effects: dict[int, Effect] = field(default_factory=dict)
    note: Part | None = None
    refusals: set[Reason] = field(default_factory=set)


class Stop(Exception):
    """Everything that was asked for has been seen."""


class Ledger:
    """One forward pass with edits and captures.

    Args:
        edits: by module's own name or address, numbered.
        wishes: by module's own name; ``globs``: of operators, whose addresses may be globs.
        batch: how many rows.
        differentiates: whether a backward pass follows.
        missing: what to stop behind; None runs to the end.
        weights: the parameters, which have no rows.
    """

    def __init__(
        self,
        edits: Mapping[str, Sequence[tuple[int, Edit]]],
        wishes: Mapping[str, Sequence[Capture]],
        globs: Mapping[str, Sequence[Capture]],
        batch: int,
        differentiates: bool,
        missing: set[tuple[str, int, Point]] | None,
        weights: Iterable[Tensor],
    ) -> None:
        self._edits = edits
        self._wishes = wishes
        self._globs = globs
        self._batch = batch
        self._differentiates = differentiates
        self._missing = missing
        self._rowless = {id(tensor): tensor for tensor in weights}  # with what is computed from them alone
        self._of_weights: dict[tuple[str, int], bool] = {}
        self._without_rows: set[Key] = set()
        self.kinds: dict[str, list[dict[Point, dict[str, torch.dtype]]]] = defaultdict(list)
        self.notes: dict[str, list[Notes]] = defaultdict(list)
        self.outputs: dict[str, Tensors] = {}
        self.effects: dict[int, Effect] = defaultdict(lambda: Effect.NEVER_MADE)
        self.cuts: list[Cut] = []
        self.refusals: set[Reason] = set()

    def wishes(self, name: str) -> list[Capture]:
        """Who looks at the module or operator ``name``."""
        found = [wish for glob, there in self._globs.items() if ":" in name and matches(glob, name) for wish in there]
        return [*found, *self._wishes.get(name, ())]

    def passing(self, spot: Spot, tensors: Tensors) -> Tensors:
        """What goes on in place of ``tensors``."""
        if spot.entering:
            self.kinds[spot.name].append({})
            self.notes[spot.name].append({})
        value, gradient = (Point.INPUT, Point.GRAD_INPUT) if spot.entering else (Point.OUTPUT, Point.GRAD_OUTPUT)
        self.kinds[spot.name][spot.call][value] = {path: tensor.dtype for path, tensor in tensors.items()}
        floating = any(tensor.is_floating_point() for tensor in tensors.values())
        gone_on = {}
        if spot.entering:
            self._of_weights[spot.name, spot.call] = bool(tensors) and all(
                id(each) in self._rowless for each in tensors.values()
            )
        rowless = not spot.entering and self._of_weights[spot.name, spot.call]
        for path, tensor in tensors.items():
            key = (spot.name, spot.call, value, path)
            if rowless or id(tensor) in self._rowless:
                self._without_rows |= {key, (spot.name, spot.call, gradient, path)}
            edits = [each for each in self._due(key) if each[1].path or tensor.is_floating_point() or not floating]
            done = self._done(key, edits, tensor)
            self._keep(key, done)
            gone_on[path] = self._cut((spot.name, spot.call, gradient, path), done.tensor)
            if spot.written is not None and spot.name in self._edits:
                gone_on[path] = _overwritten(spot.written, gone_on[path])
            if key in self._without_rows:
                self._rowless[id(gone_on[path])] = gone_on[path]
        if not spot.entering and spot.call == 0:
            self.outputs[spot.name] = gone_on
        self._stop(spot, value)
        return gone_on

    def replaces(self, spot: Spot) -> bool:
        """Whether other values go on from ``spot``."""
        return bool(self._due((spot.name, spot.call, Point.INPUT if spot.entering else Point.OUTPUT, "")))

    def _due(self, key: Key) -> list[tuple[int, Edit]]:
        name, call, point, path = key
        return [
            (number, edit)
            for number, edit in self._edits.get(name, ())
            if edit.point is point and edit.call in (None, call) and edit.path in ("", path)
        ]

    def _wish(self, key: Key) -> Capture | None:
        name, call, point, path = key
        for wish in self.wishes(name):
            if point in wish.points and wish.call in (None, call) and wish.path in ("", path):
                return wish
        return None

    def _done(self, key: Key, edits: Sequence[tuple[int, Edit]], tensor: Tensor) -> Done:
        """First edited, then noted."""
        done, wish = Done(tensor), self._wish(key)
        has_rows = key not in self._without_rows
        try:
            for number, edit in edits:
                new = edited(edit, done.tensor, self._batch if has_rows else None)
                done.effects[number] = effect(new, done.tensor)
                if isinstance(edit, Mix) and 0 < edit.weight < 1:  # of a row with itself, rounding may tell
                    done.effects[number] = max(done.effects[number], Effect.ROUNDING)
                done.tensor = new
            done.note = None if wish is None else part(wish, done.tensor.detach(), batched=has_rows)
        except Refused as refused:
            done.refusals.add(refused.reason)
        return done

    def _keep(self, key: Key, done: Done) -> None:
        self.refusals |= done.refusals
        for number, each in done.effects.items():
            self.effects[number] = max(self.effects[number], each)
        if done.note is not None:
            self.notes[key[0]][key[1]][key[2:]] = done.note

    def _cut(self, key: Key, tensor: Tensor) -> Tensor:
        edits, wish = self._due(key), self._wish(key)
        if not self._differentiates or not tensor.is_floating_point() or not (wish or edits):
            return tensor
        after = tensor.detach().clone().requires_grad_()
        self.cuts.append(Cut(tensor, after, key, edits, wish))
        return after

    def _stop(self, spot: Spot, point: Point) -> None:
        if self._missing is not None:
            self._missing.discard((spot.name, spot.call, point))
            if not self._missing:
                raise Stop

    def backward(self, scalar: Tensor, roots: Tensors) -> tuple[Tensors, dict[Key, Part]]:
        """The gradients of ``scalar``: at ``roots``, and as they were noted at places inside."""
        sources = [*roots.values(), *(cut.after for cut in self.cuts)]
        arrived: list[Tensor | None] = [None] * len(sources)
        _flow(scalar, None, sources, arrived)
        made: list[tuple[int, Done, set[int]]] = []
        for index in range(len(sources) - 1, len(roots) - 1, -1):
            cut, gradient = self.cuts[index - len(roots)], arrived[index]
            if gradient is not None:
                done = self._done(cut.key, cut.edits, gradient)
                onwards = cut.before.requires_grad
                made.append((index, done, _flow(cut.before, done.tensor, sources, arrived) if onwards else set()))
        noted = self._useful(made, len(roots))
        return {name: each for name, each in zip(roots, arrived) if each is not None}, noted

    def _useful(self, made: Sequence[tuple[int, Done, set[int]]], roots: int) -> dict[Key, Part]:
        """What was noted. A backward pass goes no further upstream than somebody looks: what it would have done to
        gradients there was not done."""
        useful = set(range(roots))
        noted: dict[Key, Part] = {}
        for index, done, reached in reversed(made):
            cut = self.cuts[index - roots]
            if cut.wish is None and not reached & useful:
                continue
            useful.add(index)
            self._keep(cut.key, done)
            if done.note is not None:
                noted[cut.key] = done.note
        return noted


def _overwritten(old: Tensor, new: Tensor) -> Tensor:
    """``new``, written over ``old``: for PyTorch it still depends on that, if only with zeros."""
    return torch.where(torch.zeros_like(old, dtype=torch.bool), old, new)


def part(wish: Capture, tensor: Tensor, batched: bool) -> Part:
    """What ``wish`` wants of ``tensor``."""
    whole = kept(wish.slices, wish.reduce, tensor, batched)
    if not wish.data_type or not whole.values.is_floating_point():
        return whole
    return whole._replace(values=whole.values.to(getattr(torch, wish.data_type)))


def _flow(tensor: Tensor, gradient: Tensor | None, sources: Sequence[Tensor], arrived: list[Tensor | None]) -> set[int]:
    """Let a gradient flow upstream, to the next cuts; which of the sources it reached."""
    reached = set()
    found: Sequence[Tensor | None] = torch.autograd.grad(
        tensor, list(sources), gradient, retain_graph=True, allow_unused=True
    )
    for index, each in enumerate(found):
        if each is not None:
            known = arrived[index]
            arrived[index] = each if known is None else known + each
            reached.add(index)
    return reached


def effect(new: Tensor, old: Tensor) -> Effect:
    """What a change from ``old`` to ``new`` is."""
    if not new.is_floating_point():
        return Effect.CHANGED if bool((new != old).any()) else Effect.NOTHING
    differ = (new != old) & ~(new.isnan() & old.isnan())
    if not differ.any():
        return Effect.NOTHING
    far = ~torch.isclose(new, old, rtol=1e-11, atol=1e-11)
    return Effect.CHANGED if bool((differ & far).any()) else Effect.ROUNDING
