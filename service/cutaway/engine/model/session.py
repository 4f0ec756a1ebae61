"""Deadlines, timings and process settings of a call, and the guard that restores a model after it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from cutaway.contract.errors import Reason, error, release_frames
from cutaway.contract.results import InspectResult, Progress, Timings
from cutaway.engine.model.plain_state import Bindings, Decisions, ParameterWrites, PlainState, is_of_a_pass
from cutaway.engine.runtime.numerics import is_array

# Deadline and cancellation of a call: no further pass begins for a caller that no longer waits. Running passes are
# ended by `cutaway.engine.hooks.observe.CancelledPasses`.


class Cancellation(NamedTuple):
    """The conditions under which a call ends before its reply.

    Attributes:
        deadline: in Unix seconds; None for no deadline.
        hung_up: returns whether the caller has cancelled the call.
    """

    deadline: float | None = None
    hung_up: Callable[[], bool] = lambda: False

    @property
    def is_cancelled(self) -> bool:
        """Whether the caller no longer waits."""
        return (self.deadline is not None and time.time() > self.deadline) or self.hung_up()

    def raise_if_cancelled(self) -> None:
        """Raises ``DEADLINE_EXCEEDED`` if the caller no longer waits."""
        if self.is_cancelled:
            why = "the caller hung up" if self.hung_up() else "the deadline passed"
            raise error(Reason.DEADLINE_EXCEEDED, f"{why} while the call was at work")

    def end_backward(self, output: Tensor) -> None:
        """Ends each backward pass that comes to ``output`` when the caller no longer waits."""
        if output.requires_grad:
            output.register_hook(lambda _: self.raise_if_cancelled())


NEVER_CANCELLED = Cancellation()


FIRST_S = 1.0
"""Seconds without progress: what takes less needs none."""

EVERY_S = 0.25
"""Seconds between two tellings of progress."""


class Listener(Protocol):
    """An observer of a request while it runs.

    Attributes:
        passes: for each attribution, how many passes of one example it is expected to take.
    """

    passes: Sequence[int]

    def so_far(self, result: InspectResult) -> None:
        """Takes the result so far, which only grows; a request that runs again begins once more. Never raises."""

    def progress(self, progress: Progress) -> None:
        """Takes how far the attributions are. Never raises."""


def latest(cancellations: Sequence[Cancellation]) -> Cancellation:
    """Returns the cancellation of several calls that share their passes: all must be cancelled."""
    deadlines = [cancellation.deadline for cancellation in cancellations]
    deadline = None if None in deadlines else max(moment for moment in deadlines if moment is not None)
    return Cancellation(deadline, lambda: all(cancellation.is_cancelled for cancellation in cancellations))


class Turns:
    """Decides when a request lets others run between two of its passes; this one has the model for itself."""

    @property
    def are_over(self) -> bool:
        """Whether another request shall run before the next pass."""
        return False

    @property
    def are_shared(self) -> bool:
        """Whether other requests have begun, and hold memory."""
        return False

    @property
    def is_divisible(self) -> bool:
        """Whether others may run at all before the end of this request."""
        return True

    @contextmanager
    def released(self) -> Iterator[None]:
        """Lets others run during the block, which must not use the model; waits for this request's turn after it."""
        yield


class _Waited(threading.local):
    """The seconds for which the requests of this thread have waited between passes."""

    seconds = 0.0


_waited = _Waited()


def own_seconds() -> float:
    """Returns the time of a clock that stands still while others run between the passes of this thread's request."""
    return time.perf_counter() - _waited.seconds


@contextmanager
def released(turns: Turns) -> Iterator[None]:
    """Lets others run during the block as `Turns.released`; the wait for a turn after it is in no timing."""
    start, of_block = time.perf_counter(), 0.0
    try:
        with turns.released():
            begun = time.perf_counter()
            try:
                yield
            finally:
                of_block = time.perf_counter() - begun
    finally:
        _waited.seconds += time.perf_counter() - start - of_block


def is_out_of_memory(failure: BaseException) -> bool:
    """Returns whether ``failure`` reports too little memory, on the host or on a device."""
    # PyTorch's allocators for the host, oneDNN, cuBLAS and cuDNN have no exception class of their own for that.
    text = str(failure)
    told = text.strip() in ("std::bad_alloc", "could not create a primitive")
    told |= any(words in text for words in ("can't allocate memory", "CUDA error: out of memory", "_ALLOC_FAILED"))
    return told or isinstance(failure, (MemoryError, torch.OutOfMemoryError))


def ran_out_of_memory(failure: BaseException) -> bool:
    """Returns what `is_out_of_memory` does; then the frames of what failed are released."""
    if not is_out_of_memory(failure):
        return False
    release_frames(failure)
    return True


@contextmanager
def timed(timings: Timings, stage: str) -> Iterator[None]:
    """Adds the milliseconds of the block to the field ``stage`` of ``timings``. Time in which other requests had the
    model does not count."""
    start = own_seconds()
    try:
        yield
    finally:
        setattr(timings, stage, getattr(timings, stage) + (own_seconds() - start) * 1000)


@dataclass
class PassCounter:
    """A counter of forward and backward passes.

    Hooks on the model's outputs count backward passes, so that Captum's are counted too.

    Attributes:
        forwards: the number of forward passes.
        watcher: called after each forward pass with its inputs.
    """

    forwards: int = 0
    watcher: Callable[[dict[str, Tensor]], object] | None = None
    _backwards: set[int] = field(default_factory=set)

    @property
    def backwards(self) -> int:
        """The number of backward passes that began at an output of the model."""
        return len(self._backwards)

    def reset(self) -> None:
        """Sets the counters to zero."""
        self.forwards = 0
        self._backwards = set()

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Counts nothing while the block runs."""
        counted = (self.forwards, set(self._backwards))
        try:
            yield
        finally:
            self.forwards, self._backwards = counted

    @contextmanager
    def watched_by(self, watcher: Callable[[dict[str, Tensor]], object]) -> Iterator[None]:
        """Calls ``watcher`` after each forward pass of the block, with its inputs."""
        self.watcher = watcher
        try:
            yield
        finally:
            self.watcher = None

    def count_backwards(self, outputs: Mapping[str, Tensor]) -> None:
        """Counts the backward passes that will begin at ``outputs``."""
        for output in outputs.values():
            if output.requires_grad and not output.is_leaf:  # a leaf may be a parameter, and would keep the hook
                output.register_hook(lambda _: self._backwards.add(torch._C._current_graph_task_id()))


# Settings of the whole process, which blocks in several threads may change at once.

T = TypeVar("T")


class ProcessSetting(Generic[T]):
    """A setting that has another ``value`` while at least one block runs.

    The first block that begins saves the setting, and the last block that ends restores it.
    """

    def __init__(self, read: Callable[[], T], write: Callable[[T], object], value: T) -> None:
        self._read, self._write, self._value = read, write, value
        self._lock = threading.Lock()
        self._blocks = 0

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Runs a block with the changed setting."""
        with self._lock:
            if not self._blocks:
                self._saved = self._read()
                self._write(self._value)
            self._blocks += 1
        try:
            yield
        finally:
            with self._lock:
                self._blocks -= 1
                if not self._blocks:
                    self._write(self._saved)


class Examples(NamedTuple):
    """A data set that was packaged with a model.

    Attributes:
        rows: the number of its examples.
        labels: the class of each; empty where they have none.
        read: returns them, by input name.
    """

    rows: int
    labels: tuple[int, ...]
    read: Callable[[Cancellation], dict[str, Tensor]]


class Checkpoint(NamedTuple):
    """Weights of a model's training: the learning rate there, and a function that reads the model's state."""

    learning_rate: float
    read: Callable[[], dict[str, Tensor]]


class Kept(NamedTuple):
    """The data sets, by name, and the checkpoints, in order, that were packaged with a model."""

    data_sets: Mapping[str, Examples] = MappingProxyType({})
    checkpoints: tuple[Checkpoint, ...] = ()


_CALLED = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""The tables of hooks that hold functions; the other tables say how these are called, by the same numbers."""

_HOOK_TABLES = [name for name in vars(nn.Module()) if name.startswith(("_forward_", "_backward_"))]
"""The attributes of a module that hold its hooks of the forward and of the backward pass."""


_MOST_KINDS = 64
"""The most kinds of passes whose first one is watched for parameters that it changes."""

_CAPTUM_ATTRIBUTES = frozenset({"rule", "activations", "input", "input_ref", "output", "output_ref"})
"""The attributes that Captum's LRP and DeepLIFT add to modules, and remove when they end."""


class StateGuard:
    """A guard of one model's state: flags, gradients, buffers, hooks, plain attributes.

    Tensors that a forward pass may write to are copied once. They are restored before each pass and after each request.
    These are buffers (a counter, a running statistic, a cache), and the weights of embeddings that renormalise
    themselves. Other parameters are copied where the first pass of its kind is about to write to them.

    Plain attributes are as they were when the request began: their owner may change them between requests.
    """

    def __init__(self, module: nn.Module) -> None:
        self._modules = list(module.modules())
        self._parameters = list(module.parameters())
        self._bindings = Bindings(self._modules)
        self._written = [*module.buffers(), *_renormalised(self._modules)]
        pristine = [(tensor, tensor.detach().clone()) for tensor in self._written]
        arrays = [pair for pair in pristine if is_array(pair[0])]
        self._arrays = [tensor for tensor, _ in arrays], [values for _, values in arrays]
        self._known_hooks: list[list[set[int]]] = []
        self._others = [pair for pair in pristine if not is_array(pair[0])]
        self._pristine = {id(tensor): values for tensor, values in pristine}
        self._own_weights: Mapping[str, Tensor] = {}
        self._plain = PlainState(self._modules)
        self._kinds: dict[Hashable, bool] = {}
        self._depth = 0
        self._flags: list[tuple[bool, Tensor | None]] = []
        self._added: frozenset[str] = frozenset()

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Restores the model after a request, however it ends."""
        training = [module.training for module in self._modules]
        flags = self._flags_of_parameters()
        if not self._depth:
            self._plain.accept()
            self._bindings.accept()
            self._flags = flags
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            try:
                self.reset()
            finally:
                self._set_flags(flags)
                for module, was_training in zip(self._modules, training):
                    if module.training is not was_training:
                        module.training = was_training

    def finding_writes(self, kind: Hashable, inputs: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        """Finds the parameters that the forward in the block changes, if it is the first of its ``kind``, or if that
        decided by its numbers: `reset` restores these too."""
        is_watched = self._kinds.get(kind, len(self._kinds) < _MOST_KINDS)
        return self._finding_writes(kind, inputs) if is_watched else nullcontext()

    @contextmanager
    def _finding_writes(self, kind: Hashable, inputs: Mapping[str, Tensor]) -> Iterator[None]:
        bound = [(one, one.data) for one in self._parameters if id(one) not in self._pristine and is_array(one)]
        decisions = Decisions()
        try:
            with decisions.of(inputs), ParameterWrites((parameter for parameter, _ in bound), self._keep):
                yield
            self._kinds[kind] = decisions.are_made or self._kinds.get(kind, False)
        finally:
            for parameter, before in bound:
                if parameter.data_ptr() != before.data_ptr():  # its ``data`` are others
                    self._keep(parameter, before)

    def _keep(self, parameter: Tensor, values: Tensor | None = None) -> None:
        """Has ``parameter`` restored to ``values``, by default to those of now."""
        if id(parameter) not in self._pristine:
            values = parameter.detach().clone() if values is None else values
            self._pristine[id(parameter)] = values
            self._written.append(parameter)
            self._arrays[0].append(parameter)
            self._arrays[1].append(values)

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Leaves the model plain while the block runs, as before the request between two of whose passes this is; puts
        its hooks and flags back afterwards, whatever the model or others have added meanwhile."""
        weights = self._exchanged(self._own_weights)
        self.reset()
        request, flags = (self._depth, self._added, self._known_hooks, self._flags), self._flags_of_parameters()
        if self._depth:
            self._set_flags(self._flags)
        tables = [(table, list(table.items()), own) for table, own in self._tables_of_passes()]
        for table, _, own in tables:
            for number in own & set(table):
                del table[number]
        self._depth, self._added = 0, frozenset()
        try:
            yield
        finally:
            self._exchanged(weights)
            self._depth, self._added, self._known_hooks, self._flags = request
            self._set_flags(flags)
            for table, hooks, own in tables:
                now = dict(table)
                table.clear()
                table.update((number, hook) for number, hook in hooks if number in now or number in own)
                table.update(now)
            if weights:
                self.reset()

    @contextmanager
    def holding(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Gives the model other ``weights`` while the block runs, by the names of its state.

        Requests that run between two of its passes find the model's own.
        """
        self._own_weights = self._exchanged(weights)
        try:
            yield
        finally:
            self._exchanged(self._own_weights)
            self._own_weights = {}
            self.reset()

    def _exchanged(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Puts ``weights`` in the place of the model's, which it returns; buffers get them at the next `reset`."""
        state, before = self._modules[0].state_dict(keep_vars=True) if weights else {}, dict[str, Tensor]()
        for name, tensor in weights.items():
            place = self._pristine.get(id(state[name]), state[name])
            before[name], place.data = place.data, tensor
        return before

    def is_untouched(self) -> bool:
        """Returns whether no pass has written to what `reset` restores: a graph may refer to it."""
        pairs = [*zip(*self._arrays), *self._others]
        return self._bindings.has_same_buffers and self._plain.is_same and all(
            tensor.grad_fn is None and torch.equal(tensor, values) for tensor, values in pairs
        )  # fmt: skip

    def _tables_of_passes(self) -> Iterator[tuple[dict[int, Any], set[int]]]:
        """Yields the tables of hooks of modules where some are ours or Captum's, with the numbers of these."""
        for module in self._modules:
            called = [getattr(module, name) for name in _CALLED]
            own = {number for table in called for number, hook in table.items() if is_of_a_pass(hook)}
            if own:
                yield from ((getattr(module, name), own) for name in _HOOK_TABLES)

    def _flags_of_parameters(self) -> list[tuple[bool, Tensor | None]]:
        return [(parameter.requires_grad, parameter.grad) for parameter in self._parameters]

    def _set_flags(self, flags: Sequence[tuple[bool, Tensor | None]]) -> None:
        for parameter, (requires_grad, gradient) in zip(self._parameters, flags):
            if parameter.grad is not gradient:
                parameter.grad = gradient
            if parameter.requires_grad is not requires_grad:
                parameter.requires_grad = requires_grad

    @contextmanager
    def removing_new_hooks(self) -> Iterator[None]:
        """Removes, after the block, every hook that was registered in it.

        Our own hooks remove themselves; Captum leaves its hooks behind if the model raises. Hooks that a model
        registers in its first pass exist before the block, and stay. Attributes that Captum adds to modules stay in the
        block from pass to pass.
        """
        self._added = _CAPTUM_ATTRIBUTES
        self._known_hooks = [[set(getattr(module, table)) for table in _HOOK_TABLES] for module in self._modules]
        try:
            yield
        finally:
            self._added = frozenset()
            self.remove_new_hooks()

    def remove_new_hooks(self) -> None:
        """Removes the hooks that were registered in the block of `removing_new_hooks`."""
        for module, known in zip(self._modules, self._known_hooks):
            for name, ids in zip(_HOOK_TABLES, known):
                table = getattr(module, name)
                for added in set(table) - ids:
                    del table[added]

    def reset(self) -> None:
        """Prepares the model for a pass: evaluation mode, buffers as they were loaded, no state of earlier passes."""
        self._plain.restore(self._added)
        for module in self._modules:
            if module.training:
                module.training = False
        self._bindings.restore()
        if not self._written:
            return
        # The version counters stay: the graph of an earlier pass may still need tensors that did not change.
        with torch.no_grad(), _unsafe_preserve_version_counter(tuple(self._written)):
            for tensor in self._written:
                if tensor.grad_fn is not None:  # written to in place by a differentiable operation
                    tensor.detach_()
            if self._arrays[0]:
                torch._foreach_copy_(*self._arrays)
            for tensor, values in self._others:
                tensor.copy_(values)

    def enable_gradients(self) -> None:
        """Lets gradients flow to frozen parameters until `restoring` ends: if a model takes no floating input, Captum's
        layer methods need some leaf to differentiate from."""
        for parameter in self._parameters:
            if parameter.is_floating_point():
                parameter.requires_grad_()


def _renormalised(modules: Iterable[nn.Module]) -> Iterator[Tensor]:
    for module in modules:
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
            yield module.weight
