"""A forward while it is being written: its values so far, and what may be done with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from hypothesis import strategies as st

from tests.fuzz.graphs import NUMBERED, Operate, Spec, Step, Visit

Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]
Shape: TypeAlias = tuple[int, ...]

NUMBERS = (-1.5, 0.5, 2.0, 1.0)


@dataclass
class Slot:
    """One value in a forward.

    Attributes:
        shape: without the batch.
        kind: ``float``, ``bool`` or ``int``.
        fresh: nobody else holds its memory, and what made it does not need it for a backward pass.
        free: nobody has used it yet.
        gone: it was changed in place, and only the result is used from then on.
    """

    shape: Shape
    kind: str = "float"
    fresh: bool = False
    free: bool = True
    gone: bool = False


@dataclass
class Child:
    """A module that a forward can call: what it takes, and what comes back."""

    spec: Spec
    takes: tuple[Shape, ...]
    returns: tuple[Slot, ...]
    keyword: str = ""


@dataclass
class Draft:
    """A forward being written."""

    draw: Draw
    slots: list[Slot]
    depth: int
    steps: list[Step] = field(default_factory=list)
    children: dict[str, Child] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    def pick(self, options: Sequence[Any]) -> Any:
        """One of them."""
        return options[0] if len(options) == 1 else self.draw(st.sampled_from(options))

    def floats(self, fits: Callable[[Slot], bool] = lambda slot: True) -> list[int]:
        """The slots with floating numbers that ``fits``."""
        return [n for n, slot in enumerate(self.slots) if slot.kind == "float" and not slot.gone and fits(slot)]

    def source(self) -> int:
        """Some slot, rather a late one."""
        there = self.floats()
        return int(self.pick([*there, *there[-2:]]))

    def like(self, slot: int) -> int:
        """Some slot of the same shape."""
        return int(self.pick(self.floats(lambda other: other.shape == self.slots[slot].shape)))

    def writable(self) -> list[int]:
        """Slots that may be changed in place."""
        return self.floats(lambda slot: slot.fresh and slot.free)

    def add(self, step: Step, *results: Slot) -> list[int]:
        """Append ``step``, whose results fill new slots."""
        keywords = [slot for _, slot in step.keywords] if isinstance(step, Visit) else []
        for slot in [*step.sources, *keywords]:
            self.slots[slot].free = False
        self.steps.append(step)
        self.slots += [replace(each) for each in results]
        return list(range(len(self.slots) - len(results), len(self.slots)))

    def operate(self, op: str, sources: Sequence[int], result: Slot, **more: Any) -> int:
        """Append an operator."""
        number = self.pick(NUMBERS) if op in NUMBERED else 0.0
        return self.add(Operate(op, tuple(sources), number, **more), result)[0]

    def enlist(self, child: Child, name: str) -> str:
        """A new child, under a name of its own."""
        own = f"{name}{len(self.children)}"
        self.children[own] = child
        return own

    def call(self, name: str) -> None:
        """Call the child ``name``, or an alias of it, on slots that fit."""
        child = self.children[self.aliases.get(name, name)]
        fitting = [self.floats(lambda slot, shape=shape: slot.shape == shape) for shape in child.takes]  # type: ignore[misc]
        if not all(fitting):
            return
        sources = [self.pick(each) for each in fitting]
        keywords = ((child.keyword, sources.pop()),) if child.keyword else ()
        self.add(Visit(name, tuple(sources), keywords), *child.returns)
