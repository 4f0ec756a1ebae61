"""The record of the hooks: the tensors of each call, and the effects of edits and copies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.utils.checkpoint import _StopRecomputationError
from torch.utils.hooks import RemovableHandle

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.requests import Point
from cutaway.contract.results import EditReceipt
from cutaway.contract.results.arrays import Place
from cutaway.engine.hooks.capture_spec import CapturedValues
from cutaway.engine.model.session import is_out_of_memory
from cutaway.engine.runtime.numerics import Path, dense

# Copies from a GPU go to pinned memory while the pass continues; readers wait until they are complete.
# https://docs.pytorch.org/docs/stable/notes/cuda.html#use-pinned-memory-buffers

_HOST = torch.device("cpu")


def copy_to_host(tensor: Tensor) -> Tensor:
    """Returns a copy on the host without a graph; a meta tensor, which has no values, is returned as it is."""
    return tensor if tensor.is_meta else _plain(tensor).to(_HOST, copy=True)


class PendingCopies:
    """The copies from a GPU that may not be complete yet."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def copy_to_host(self, tensor: Tensor) -> Tensor:
        """Returns a copy on the host as `copy_to_host` does, complete once `wait` has returned."""
        if tensor.device.type != "cuda":
            return copy_to_host(tensor)
        values = _plain(tensor)
        copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        copy.copy_(values, non_blocking=True)
        # On the stream of the copy, where the copy also runs before any operation that overwrites the tensor.
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(values.device))
        self._events.append(event)
        return copy

    def wait(self) -> None:
        """Waits until all copies are complete."""
        while self._events:
            self._events.pop().synchronize()


def _plain(tensor: Tensor) -> Tensor:
    """Returns the values with strides, without a graph and without lazy conjugation or negation."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return dense(tensor.detach())


Gradients: TypeAlias = dict[Point, dict[Path, "CapturedValues | None"]]
"""The gradients that one backward pass brought to one call."""


class RecordedCall:
    """The tensors of one call of a module, or of one run of an operator.

    Attributes:
        number: the number of the call in its pass, from 0; ``None`` if unknown.
        step: the step of a generation.
        dtypes: by INPUT and OUTPUT, the data type of every tensor, captured or not.
        without_array: the points of values, and the paths, of tensors that no array can hold.
        left_out: the points and paths of tensors that a glob leaves out.
    """

    __slots__ = ("_captured", "_pending_copies", "dtypes", "left_out", "number", "step", "without_array")

    def __init__(self, number: int | None = 0, step: int = 0) -> None:
        self.number = number
        self.step = step
        self.dtypes: dict[Point, dict[Path, torch.dtype]] = {}
        self.without_array: tuple[tuple[Point, Path], ...] = ()
        self.left_out: tuple[tuple[Point, Path], ...] = ()
        # A gradient is None until a backward pass brings it, but keeps its place among the module's tensors.
        self._captured: dict[Point, dict[Path, CapturedValues | None]] = {}
        self._pending_copies = PendingCopies()

    @property
    def is_left_out(self) -> bool:
        """Whether a glob leaves out all that it would capture of this call."""
        return bool(self.left_out) and not self._captured

    def at(self, point: Point) -> dict[Path, Tensor]:
        """Returns the values at ``point`` on the host, by path, in the order of the module's arguments or outputs."""
        return {path: part.values for path, part in self.captured(point).items()}

    def captured(self, point: Point) -> dict[Path, CapturedValues]:
        """Returns the values at ``point`` as `at` does, with the indices of largest elements."""
        self._pending_copies.wait()
        parts = self._captured.get(point)
        return {path: part for path, part in parts.items() if part is not None} if parts else {}

    def record(self, point: Point, path: Path, part: CapturedValues | None) -> None:
        """Stores a copy of ``part`` on the host; ``None`` keeps a place for a gradient."""
        if part is not None:
            part = part.map(self._pending_copies.copy_to_host)
        self.store(point, path, part)

    def store(self, point: Point, path: Path, part: CapturedValues | None) -> None:
        """Stores ``part`` itself, which must be on the host and used by nothing else."""
        self._captured.setdefault(point, {})[path] = part

    def entries(self) -> Iterator[tuple[Point, Path, CapturedValues | None]]:
        """Yields all that is stored, with None for gradients that did not come."""
        self._pending_copies.wait()
        for point, parts in self._captured.items():
            for path, part in parts.items():
                yield point, path, part

    def take_gradients(self) -> Gradients:
        """Removes and returns the gradients of the last backward pass, so that another pass may bring its own."""
        self._pending_copies.wait()
        taken = {point: dict(parts) for point, parts in self._captured.items() if point.is_gradient}
        for point, parts in taken.items():
            self._captured[point] = dict.fromkeys(parts)
        return taken

    def put_gradients(self, gradients: Gradients) -> None:
        """Stores ``gradients`` in place of the present ones."""
        self._captured.update(gradients)


class HookScope:
    """The context of a hook's body; a class and not a generator, because every call of a module enters it.

    Args:
        faults: the list to which an error of the hook is added.
    """

    __slots__ = ("_faults", "_outer")

    def __init__(self, faults: list[CutawayError]) -> None:
        self._faults = faults

    def __enter__(self) -> None:
        self._outer, _thread_state.inside_hook = inside_hook(), True

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keeps an error of the hook for `Recording.forward`, which raises that error even if the model caught it."""
        _thread_state.inside_hook = self._outer
        if isinstance(failure, CutawayError):
            self._faults.append(failure)
        # Activation checkpointing ends a recomputation with this exception: it is no failure.
        elif isinstance(failure, Exception) and not (
            isinstance(failure, _StopRecomputationError) or is_out_of_memory(failure)
        ):
            fault = error(Reason.INTERNAL, f"a hook failed: {type(failure).__name__}: {failure}"[:500])
            self._faults.append(fault)
            raise fault from failure


class Recording:
    """The record of all hooks so far.

    Attributes:
        calls: by module name or operator address, one element for each call, in the order in which the calls began.
        gradient_roots: the places of captured gradients in the graph. Pass them to ``torch.autograd.grad`` as inputs,
            so that the backward pass reaches them.
        operators: the addresses of all operators that ran, in order, if operators are observed.
        receipts: by number of an edit that was applied, what it did.
        edited: the numbers of edits, and the places where they are applied.
        left_out: the same of places that an edit by a glob leaves out, in order.
        unreached_inputs: the explained inputs that a target does not depend on.
        on_leaves: the hooks on leaves, which do not end with the graph.
        kept_output: the first output tensor, in the graph, of the module whose output is kept.
        pending: the captures after which forward may stop; ``None`` lets it run to its end.
        in_forward: whether a forward pass is running.
        numbers: by module name or operator address, how often it was called in this pass.
        step: the step of a generation.
    """

    def __init__(self) -> None:
        self.calls: dict[str, list[RecordedCall]] = {}
        self.gradient_roots: list[GradientEdge] = []
        self.operators: dict[str, None] = {}
        self.receipts: dict[int, EditReceipt] = {}
        self.edited: set[tuple[int, Place]] = set()
        self.left_out: dict[tuple[int, Place], None] = {}
        self.unreached_inputs: dict[str, None] = {}
        self.on_leaves: list[RemovableHandle] = []
        self.kept_output: Tensor | None = None
        self.pending: set[tuple[str, Point]] | None = None
        self.in_forward = False
        self.numbers: dict[str, int] = {}
        self.step = 0
        self._replaced: list[tuple[Tensor, Tensor, int, int]] = []
        self._faults: list[CutawayError] = []

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Surrounds each forward pass: calls are numbered from 0, and gradients that the model itself computes in its
        forward are not recorded.

        Raises:
            CutawayError: the error of a hook, also if the model caught it or raised another one instead.
        """
        self.numbers = {}
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

    def hook_scope(self) -> HookScope:
        """Returns the context for the body of a hook: its operators are not the model's, and its errors are kept."""
        return HookScope(self._faults)

    def begin_call(self, name: str) -> RecordedCall:
        """Begins the record of a call of ``name``."""
        if in_backward():
            return RecordedCall(0 if self.numbers.get(name) == 1 else None)
        call = RecordedCall(self.numbers.get(name, 0), self.step)
        self.numbers[name] = self.numbers.get(name, 0) + 1
        self.calls.setdefault(name, []).append(call)
        return call

    def next_step(self) -> None:
        """Begins the next step of a generation: its calls are numbered from 0."""
        self.step += 1
        self.numbers = {}

    def mark_replaced(self, tensor: Tensor, copy: Tensor) -> None:
        """Notes that ``copy`` replaced ``tensor``, to which the model may hold another reference."""
        self._replaced.append((tensor, copy, tensor._version, copy._version))

    def mark_captured(self, name: str, point: Point) -> None:
        """Notes that the captured call of ``name`` showed ``point``.

        Raises:
            StopForward: no capture is pending any more.
        """
        if self.pending:
            self.pending.discard((name, point))
            if not self.pending:
                raise StopForward

    def release(self) -> None:
        """Drops all references to the graph, whose hooks refer to this object: Python's garbage collector cannot see
        that cycle."""
        while self.on_leaves:
            self.on_leaves.pop().remove()
        self.gradient_roots.clear()
        self._replaced.clear()
        self.kept_output = None
        self._faults.clear()  # a traceback refers to the tensors of its frames

    @property
    def stopped_early(self) -> bool:
        """Whether forward stopped because no capture was pending any more."""
        return self.pending is not None and not self.pending

    @property
    def copies_diverged(self) -> bool:
        """Whether an in-place operation changed a tensor, or its copy, while the model used the other one too.

        The model may then have computed something else than without hooks.
        """
        return any((tensor._version, copy._version) != (v, w) for tensor, copy, v, w in self._replaced)


_thread_state = threading.local()


def inside_hook() -> bool:
    """Returns whether this thread is executing one of our hooks."""
    return getattr(_thread_state, "inside_hook", False)


class StopForward(BaseException):
    """All captures are complete: the rest of the forward pass is not needed. Not an `Exception`, which a model may
    catch."""


def stack_gradients(passes: list[Gradients]) -> Gradients:
    """Joins what several backward passes brought to one call, along a new axis 1.

    A gradient that came in some passes only is zero in the others.
    """
    return {
        point: {path: _stack([gradients[point][path] for gradients in passes]) for path in paths}
        for point, paths in passes[0].items()
    }


def _stack(parts: list[CapturedValues | None]) -> CapturedValues | None:
    present = next((part for part in parts if part is not None), None)
    if present is None:
        return None
    blank, axis = present.map(torch.zeros_like), min(1, present.values.ndim)
    values, positions, _ = zip(*(part or blank for part in parts))
    row_axis = None if present.row_axis is None else present.row_axis + (present.row_axis >= axis)
    stacked = None if blank.positions is None else torch.stack(positions, axis)
    return CapturedValues(torch.stack(values, axis), stacked, row_axis)


def in_backward() -> bool:
    """Returns whether a backward pass is running in this thread.

    Activation checkpointing then runs a module's forward again. That is no new call, but its graph must become what the
    first one was, copies and edits included.
    """
    return bool(torch._C._current_graph_task_id() != -1)
