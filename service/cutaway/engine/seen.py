"""What hooks saw."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.utils.checkpoint import _StopRecomputationError

from cutaway.engine.landing import Landing
from cutaway.engine.leaves import Path
from cutaway.engine.memory import ran_out
from cutaway.engine.wishes import Part
from cutaway.errors import CutawayError, Reason, error
from cutaway.requests import Point

Gradients: TypeAlias = dict[Point, dict[Path, "Part | None"]]
"""What one backward pass brought to one call."""


class Call:
    """What one call of a module, or one run of an operator, showed.

    Attributes:
        number: which call it is, from 0; ``None`` where that cannot be told.
        kinds: by INPUT and OUTPUT, the data type of each tensor that was there, whether it was wanted or not.
    """

    __slots__ = ("_landing", "_seen", "kinds", "number")

    def __init__(self, number: int | None = 0) -> None:
        self.number = number
        self.kinds: dict[Point, dict[Path, torch.dtype]] = {}
        # A gradient is None until a backward pass brings it, but keeps its place among the module's tensors.
        self._seen: dict[Point, dict[Path, Part | None]] = {}
        self._landing = Landing()

    def at(self, point: Point) -> dict[Path, Tensor]:
        """The tensors at ``point`` by path, on the host, in the order in which the module takes or returns them."""
        return {path: part.values for path, part in self.parts(point).items()}

    def parts(self, point: Point) -> dict[Path, Part]:
        """The same, with the positions of largest elements."""
        self._landing.wait()
        noted = self._seen.get(point)
        return {path: part for path, part in noted.items() if part is not None} if noted else {}

    def note(self, point: Point, path: Path, part: Part | None) -> None:
        """Keep a copy of ``part``, or its place."""
        if part is not None:
            positions = None if part.positions is None else self._landing.on_host(part.positions)
            part = Part(self._landing.on_host(part.values), positions)
        self.put(point, path, part)

    def put(self, point: Point, path: Path, part: Part | None) -> None:
        """Keep ``part`` as it is, on the host and nobody else's, or its place."""
        self._seen.setdefault(point, {})[path] = part

    def noted(self) -> Iterator[tuple[Point, Path, Part | None]]:
        """Everything that is kept, places included."""
        self._landing.wait()
        for point, parts in self._seen.items():
            for path, part in parts.items():
                yield point, path, part

    def take_gradients(self) -> Gradients:
        """What the last backward pass brought; afterwards another may bring its own."""
        self._landing.wait()
        taken = {point: dict(parts) for point, parts in self._seen.items() if point.is_gradient}
        for point, parts in taken.items():
            self._seen[point] = dict.fromkeys(parts)
        return taken

    def put_gradients(self, gradients: Gradients) -> None:
        """Show these gradients from now on."""
        self._seen.update(gradients)


class Copied(NamedTuple):
    """A tensor that was replaced by a copy, and both versions at that moment."""

    original: Tensor
    copy: Tensor
    versions: tuple[int, int]

    @property
    def changed(self) -> bool:
        """Whether an in-place operation has since made the two differ."""
        return (self.original._version, self.copy._version) != self.versions


class Hook:
    """The inside of a hook; a class and no generator, because every call of a module goes through it.

    Args:
        faults: where to put what goes wrong.
    """

    __slots__ = ("_faults", "_outer")

    def __init__(self, faults: list[CutawayError]) -> None:
        self._faults = faults

    def __enter__(self) -> None:
        self._outer, _here.is_hook = is_hook(), True

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        _here.is_hook = self._outer
        if isinstance(failure, CutawayError):
            self._faults.append(failure)
        # That is how activation checkpointing ends a recomputation, and no failure.
        elif isinstance(failure, Exception) and not (isinstance(failure, _StopRecomputationError) or ran_out(failure)):
            fault = error(Reason.INTERNAL, f"a hook failed: {type(failure).__name__}: {failure}"[:500])
            self._faults.append(fault)
            raise fault from failure


class Seen:
    """What the hooks saw so far.

    Attributes:
        calls: by module name or operator address, one element for each call, in the order in which the calls began.
        gradient_roots: where the gradient points lie in the graph. A backward pass that is to show them must reach
            them: hand them to ``torch.autograd.grad`` as inputs.
        operators: the addresses of all operators that ran, in order, where operators are followed.
        effects: by number of an edit that was made, whether it changed anything.
        neuron: the first tensor of the first call of the module that was asked for alive, a node of the graph.
        missing: what forward may stop behind, once nothing of it is missing; ``None`` lets it run to its end.
    """

    def __init__(self) -> None:
        self.calls: dict[str, list[Call]] = {}
        self.gradient_roots: list[GradientEdge] = []
        self.operators: dict[str, None] = {}
        self.effects: dict[int, bool] = {}
        self.neuron: Tensor | None = None
        self.missing: set[tuple[str, Point]] | None = None
        self.in_forward = False
        self.copied: list[Copied] = []
        self._faults: list[CutawayError] = []
        self._numbers: dict[str, int] = {}

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Around each forward pass: calls are numbered from 0, and a gradient that a model takes inside its forward is
        not the target's.

        Raises:
            CutawayError: what went wrong in a hook, also where the model caught it, or said it in its own words.
        """
        self._numbers = {}
        self.in_forward = True
        try:
            yield
        except Exception as failure:
            if self._faults:
                raise self._faults[0] from failure
            raise
        finally:
            self.in_forward = False
        if self._faults:
            raise self._faults[0]

    def hook(self) -> Hook:
        """Around the body of each hook: what it does to tensors is no operator of the model's, and what goes wrong in
        it is remembered."""
        return Hook(self._faults)

    def begin(self, name: str) -> Call:
        """A call of ``name`` begins."""
        if in_backward():
            return Call(0 if self._numbers.get(name) == 1 else None)
        call = Call(self._numbers.get(name, 0))
        self._numbers[name] = self._numbers.get(name, 0) + 1
        self.calls.setdefault(name, []).append(call)
        return call

    def found(self, name: str, point: Point) -> None:
        """The call that was wanted of ``name`` showed ``point``.

        Raises:
            Enough: nothing is missing any more.
        """
        if self.missing:
            self.missing.discard((name, point))
            if not self.missing:
                raise Enough

    def release(self) -> None:
        """Let go of the graph. Its hooks lead back here, in a circle that Python's collector cannot see."""
        self.gradient_roots.clear()
        self.copied.clear()
        self.neuron = None
        self._faults.clear()  # a traceback holds what was on the way

    @property
    def stopped(self) -> bool:
        """Whether forward stopped early, because nothing was missing any more."""
        return self.missing is not None and not self.missing

    @property
    def entangled(self) -> bool:
        """Whether an in-place operation changed a tensor that was replaced by a copy while somebody else held it: the
        model may then have computed something else than without hooks."""
        return any(copied.changed for copied in self.copied)


_here = threading.local()


def is_hook() -> bool:
    """Whether a hook of ours is at work in this thread."""
    return getattr(_here, "is_hook", False)


class Enough(BaseException):
    """Everything that was asked for has been seen: the rest of the forward pass is nobody's business. Not an
    `Exception`, which a model may catch."""


def stacked(backwards: list[Gradients]) -> Gradients:
    """What several backward passes brought to one call, as one: a new axis behind axis 0 counts them. A gradient that
    reached its place in some passes only is zero in the others."""
    return {
        point: {path: _stacked([each[point][path] for each in backwards]) for path in paths}
        for point, paths in backwards[0].items()
    }


def _stacked(parts: list[Part | None]) -> Part | None:
    shown = next((part for part in parts if part is not None), None)
    if shown is None:
        return None
    blank = Part(*(None if each is None else torch.zeros_like(each) for each in shown))  # type: ignore[arg-type]
    return Part(*(_along_rows(each) for each in zip(*(part or blank for part in parts))))  # type: ignore[arg-type]


def _along_rows(tensors: tuple[Tensor | None, ...]) -> Tensor | None:
    given = [tensor for tensor in tensors if tensor is not None]
    return torch.stack(given, dim=min(1, given[0].ndim)) if given else None


def in_backward() -> bool:
    """Whether a backward pass is running. Activation checkpointing runs a module's forward again then: that is no new
    call, but the graph must become what it was, copies and edits included."""
    return bool(torch._C._current_graph_task_id() != -1)


Shared = Callable[[Tensor], bool]
"""Whether somebody else may hold the same numbers as a tensor at hand."""
