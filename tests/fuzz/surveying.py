"""What there is to ask of a model, and the dice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st
from torch import Tensor

from cutaway.contract.requests import Slice
from tests.fuzz import places
from tests.fuzz.drawing import Draw
from tests.fuzz.graphs import VOCABULARY, Graph, build
from tests.fuzz.interpreter import Interpreter, Spot, Tensors

Calls: TypeAlias = list[dict[bool, Tensors]]
"""What each call of one place took (True) and returned (False)."""

POINTS = ("input", "output", "grad_input", "grad_output")


@dataclass
class Survey:
    """What there is to ask about: calls by module's own name or operator's address, outputs, parameters."""

    graph: Graph
    calls: dict[str, Calls]
    outputs: Tensors
    weights: dict[str, Tensor]


def survey(graph: Graph) -> Survey:
    """Run the model once and look."""
    weights = {name: each.detach().clone() for name, each in build(graph).named_parameters()}
    calls: dict[str, Calls] = {}

    def passing(spot: Spot, tensors: Tensors) -> Tensors:
        if spot.entering:
            calls.setdefault(spot.name, []).append({})
        calls[spot.name][spot.call][spot.entering] = tensors
        return tensors

    return Survey(graph, calls, Interpreter(graph, weights, passing).run(graph.inputs()), weights)


@dataclass
class Asker:
    """Throws the dice over one model."""

    draw: Draw
    survey: Survey

    def pick(self, options: Sequence[Any]) -> Any:
        """One of them."""
        return self.draw(st.sampled_from(options))

    def sometimes(self) -> bool:
        """One time in three or so."""
        return self.draw(st.integers(0, 2)) == 2

    def rarely(self) -> bool:
        """One time in six or so."""
        return self.draw(st.integers(0, 5)) == 5

    def place(self) -> str:
        """A module's own name, or an operator's address."""
        names = [name for name in self.survey.calls if name]
        ops = [name for name in names if ":" in name]
        modules = [name for name in names if ":" not in name]
        return str(self.pick(ops if not modules or (ops and self.draw(st.booleans())) else modules))

    def name(self, own: str) -> str:
        """A name of the module ``own``."""
        aliases = [name for name, real in places.modules(self.survey.graph).items() if real == own]
        return str(self.pick(aliases))

    def tensor(self, place: str, point: str) -> tuple[int, str, Tensor] | None:
        """A call, a path and the tensor there."""
        calls = self.survey.calls[place]
        call = self.draw(st.integers(0, len(calls) - 1)) if len(calls) > 1 else 0
        there = calls[call][point.endswith("input")]
        path = self.pick(list(there)) if there else ""
        return (call, path, there[path]) if there else None

    def slices(self, shape: Sequence[int]) -> tuple[Slice, ...]:
        """None, one or two axes cut."""
        if not shape or not self.sometimes():
            return ()
        axes = self.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, max_size=2, unique=True))
        return tuple(self.cut(axis, shape) for axis in axes)

    def cut(self, axis: int, shape: Sequence[int]) -> Slice:
        """Some of one axis, in one of the ways to say so."""
        size = shape[axis]
        start = self.draw(st.integers(0, size - 1))
        stop = self.draw(st.integers(start + 1, size))
        axis = axis - len(shape) if self.draw(st.booleans()) else axis
        if self.sometimes():
            places = self.draw(st.permutations(range(size)))[: stop - start]
            return Slice(axis, indices=tuple(place - size * self.draw(st.booleans()) for place in places))
        return Slice(
            axis,
            self.pick([start, start - size, *[None] * (start == 0)]),
            self.pick([stop, None if stop == size else stop - size]),
            self.pick([None, None, 1, 2]),
        )

    def array(self, shape: Sequence[int], dtype: Any) -> Any:
        """Seeded noise of ``dtype``."""
        dice = np.random.default_rng(self.draw(st.integers(0, 2**16)))
        if str(dtype) == "torch.bool":
            return dice.integers(0, 2, size=shape).astype(bool)
        if not dtype.is_floating_point:
            return dice.integers(0, VOCABULARY, size=shape)
        return dice.normal(size=shape)

    def broadcast(self, shape: Sequence[int]) -> tuple[int, ...]:
        """``shape``, or one that broadcasts against it."""
        way = self.draw(st.integers(0, 3))
        if way == 0:
            return tuple(shape[self.draw(st.integers(0, len(shape))) :])
        if way == 1:
            return tuple(size if self.draw(st.booleans()) else 1 for size in shape)
        return tuple(shape)
