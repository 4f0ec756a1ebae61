"""The one place that registers hooks.

    with observing(tree, {"conv1": watching(Point.OUTPUT, Point.GRAD_OUTPUT)}) as seen:
        with seen.forward():
            outputs = model(x)
        torch.autograd.grad(outputs.sum(), seen.gradient_roots, allow_unused=True)
    seen.calls["conv1"][0].at(Point.GRAD_OUTPUT)[""]      # a tensor on the host

A forward pre-hook and a forward hook see inputs and outputs, and may change them. For the gradients, PyTorch's own full
backward hook puts a view of each tensor into the graph and hooks it. Any in-place operation nearby then raises; tensors
in dicts or passed by keyword are never seen. The same two places are hooked here the same way, but on a *copy* of each
tensor (`Tensor.register_hook`), which in-place operations may change at will. A hook sees the gradients that a full
backward hook sees, also for a module that returns its own input. There, a hook on the bare tensor would add up other
branches' gradients. The gradient that the hook returns flows on upstream.

What a hook sees is copied to the host when it fires, before anything later can overwrite it. All hooks are gone when
the block ends, whatever ended it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.hooks import RemovableHandle

from cutaway.contract.requests import Point
from cutaway.engine.hooks.capture_spec import CaptureSpec, SpecsBySite
from cutaway.engine.hooks.edits import NumberedEdit
from cutaway.engine.hooks.hook_site import (
    INCOMING,
    OUTGOING,
    Batch,
    HookSite,
    Shapes,
    Share,
    SharedSite,
    shares_memory,
)
from cutaway.engine.hooks.operators import Operators, is_address
from cutaway.engine.hooks.recording import HookScope, RecordedCall, Recording, copy_to_host
from cutaway.engine.model.inspected_model import InspectedModel, Outputs, graph_nodes
from cutaway.engine.model.module_tree import ModuleTree
from cutaway.engine.runtime.numerics import Path, argument_tensors, has_array, leaves, map_leaves, replace_arguments


@contextmanager
def observing(
    tree: ModuleTree,
    sites: SpecsBySite,
    edits: Mapping[str, Sequence[NumberedEdit]] | None = None,
    *,
    batch: Batch | None = None,
    keep_output_of: str | None = None,
    copies: bool = True,
    recording: Recording | None = None,
) -> Iterator[Recording]:
    """Records and edits activations and gradients while the block runs.

    Args:
        tree: the modules.
        sites: what to capture, by module name, operator address or glob of addresses.
        edits: the edits in their order, by module name or operator address.
        batch: the rows of the request, for captures of a request and for edits of single rows.
        keep_output_of: the module whose first output tensor is kept in the graph, as `Recording.kept_output`.
        copies: False hooks the tensors themselves where that shows the same, so that neither the model's values nor
            the gradients that other hooks see change in the last bit.
        recording: where to record, from an earlier block; a new one by default.

    Yields:
        The recording. It fills while passes run and stays readable afterwards; a new one drops the graph at the end of
        the block.
    """
    seen = Recording() if recording is None else recording
    changes = edits or {}

    def new_site(name: str, specs: Mapping[Point, CaptureSpec], numbered: Sequence[NumberedEdit]) -> HookSite:
        return HookSite(seen, name, specs, numbered, batch, copies, keeps_output=name == keep_output_of)

    names = list(dict.fromkeys([*sites, *changes, *([] if keep_output_of is None else [keep_output_of])]))
    for name in names:
        seen.calls.setdefault(name, [])
    addresses = [name for name in names if is_address(name)]
    handles: list[RemovableHandle] = []

    def remove_hooks() -> None:  # an exit stack of a thousand handles would take a tenth of a pass
        for handle in handles:
            handle.remove()

    with ExitStack() as ends:
        if recording is None:
            ends.callback(seen.release)
        _thread.recordings.append(seen)
        ends.callback(_thread.recordings.remove, seen)
        ends.callback(remove_hooks)
        if addresses:
            own_specs = {name: sites[name] for name in addresses if name in sites}
            own_edits = {name: changes[name] for name in addresses if name in changes}
            operators = Operators(seen, new_site, tree, own_specs, own_edits)
            handles.extend(_scope_hooks(tree, operators))
            ends.enter_context(operators)
        for name in names:
            if name not in addresses:
                site = new_site(name, sites.get(name, {}), changes.get(name, ()))
                handles.extend(_ModuleHooks(site).register(tree.modules[name]))
        yield seen


@contextmanager
def observing_together(
    tree: ModuleTree,
    shares: Sequence[Share],
    rows: int,
    width: int,
    last: int = 1,
    shapes: Shapes | None = None,
) -> Iterator[Recording]:
    """Records and edits as `observing` does, for each of ``shares`` as if its rows ran alone; of modules only.

    Args:
        tree: the modules.
        shares: the requests.
        rows: the number of all rows.
        width: the tokens of the first pass, with padding.
        last: the number of last tokens that have logits; 0 where an encoder reads the ``width`` tokens.
        shapes: what an earlier block left of its last pass, if this one goes on.

    Yields:
        The recording of what they have in common: the step, and the errors of hooks.
    """
    joint = Recording()
    names = list(dict.fromkeys(name for share in shares for name in (*share.sites, *share.edits)))
    for share in shares:
        for name in (*share.sites, *share.edits):
            share.recording.calls.setdefault(name, [])
    handles: list[RemovableHandle] = []
    _thread.recordings.append(joint)
    try:
        for name in names:
            site = SharedSite(joint, name, shares, (rows, width, last), {} if shapes is None else shapes)
            handles.extend(_ModuleHooks(site).register(tree.modules[name]))
        yield joint
    finally:
        for handle in handles:
            handle.remove()
        _thread.recordings.remove(joint)
        for recording in (joint, *(share.recording for share in shares)):
            recording.release()


@contextmanager
def keeping_outputs(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, Tensor | None]]:
    """Keeps a copy on the host of the tensor that each module returns while the block runs, and nothing else.

    Yields:
        The copies, by name; None for a module that is called twice, fails, or returns anything but an array.
    """
    seen: dict[str, Tensor | None] = {}

    def keeping(name: str) -> Callable[..., None]:
        def keep(_module: nn.Module, _args: object, output: object) -> None:
            is_first = name not in seen
            seen[name] = copy_to_host(output) if is_first and type(output) is Tensor and has_array(output) else None

        return keep

    handles = [module.register_forward_hook(keeping(name), always_call=True) for name, module in modules.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def calling_first(modules: Iterable[nn.Module], function: Callable[[], None]) -> Iterator[None]:
    """Calls ``function`` before each forward of ``modules`` while the block runs."""
    handles = [module.register_forward_pre_hook(lambda *_: function()) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Thread(threading.local):
    """The recordings of this thread's blocks of `observing`."""

    def __init__(self) -> None:
        self.recordings: list[Recording] = []


_thread = _Thread()


@contextmanager
def repeating_calls() -> Iterator[None]:
    """Runs a part of the model's forward once more, without an effect on the numbers of calls behind it."""
    before = [(recording, dict(recording.numbers)) for recording in _thread.recordings]
    try:
        yield
    finally:
        for recording, numbers in before:
            recording.numbers = numbers


@contextmanager
def tracing(tree: ModuleTree, operators: Operators) -> Iterator[None]:
    """Shows every operator of the block, and the call of every module, to ``operators`` alone."""
    with ExitStack() as ends:
        for handle in _scope_hooks(tree, operators):
            ends.callback(handle.remove)
        ends.enter_context(operators)
        yield


def _scope_hooks(tree: ModuleTree, operators: Operators) -> Iterator[RemovableHandle]:
    """Registers hooks that tell which module's forward is running; before all others, which run inside that scope."""
    for name, module in tree.modules.items():
        yield module.register_forward_pre_hook(partial(operators.enter, name), prepend=True)
        yield module.register_forward_hook(operators.leave, prepend=True, with_kwargs=True, always_call=True)


class _ModuleHooks:
    """The hooks of one module. Calls are numbered when they begin, so that one record has all points of a call."""

    def __init__(self, site: HookSite | SharedSite) -> None:
        self._recording = site.recording
        self._site = site
        self._open: list[tuple[RecordedCall, list[Tensor]]] = []
        self._only_begins = site.only_records_outputs
        # Only for gradients at an output it matters whether the output shares memory with an input.
        self._needs_inputs = site.needs_gradients(OUTGOING)
        self._only_records_in, self._only_records_out = site.only_records(INCOMING), site.only_records(OUTGOING)

    def register(self, module: nn.Module) -> Iterator[RemovableHandle]:
        """Registers the hooks on ``module``.

        The forward hook runs also if forward raises. A model may catch the error, and the next call must not continue
        the failed one's record.
        """
        if self._only_begins:
            yield module.register_forward_pre_hook(self._begin)
        else:
            yield module.register_forward_pre_hook(self._before, with_kwargs=True)
        yield module.register_forward_hook(self._after, with_kwargs=True, always_call=True)

    def _begin(self, _: nn.Module, _args: tuple[Any, ...]) -> None:
        """Begins a call of which only outputs are recorded, as a forward pre-hook."""
        self._open.append((self._recording.begin_call(self._site.name), []))

    def _before(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """Begins a call, and records and edits the module's arguments, as a forward pre-hook."""
        with self._recording.hook_scope():
            call = self._recording.begin_call(self._site.name)
            self._open.append((call, self._inputs(args, kwargs)))
            tensors = argument_tensors(args, kwargs)
            if self._only_records_in:
                self._site.record(call, INCOMING, tensors)
                return None
            results = self._site.process(call, INCOMING, tensors, shared=lambda _: True)
            return None if _are_same(results, tensors) else replace_arguments(args, kwargs, results)

    def _after(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Ends the call, and records and edits the module's outputs, as a forward hook that also runs after an
        error."""
        if not self._open:  # the call never began: a pre-hook of the model's own raised an error
            return None
        with self._recording.hook_scope():
            call, inputs = self._open.pop()
            tensors = leaves(output)
            if self._only_records_out:
                self._site.record(call, OUTGOING, tensors)
                return None
            inputs += self._inputs(args, kwargs)

            results = self._site.process(call, OUTGOING, tensors, partial(shares_memory, others=inputs))
            return None if _are_same(results, tensors) else map_leaves(output, lambda path, _: results[path])

    def _inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        return [*leaves(args).values(), *leaves(kwargs).values()] if self._needs_inputs else []


def _are_same(results: Mapping[Path, Tensor], tensors: Mapping[Path, Tensor]) -> bool:
    """Returns whether the model continues with the very ``tensors`` that it had."""
    return all(results[path] is tensor for path, tensor in tensors.items())


@contextmanager
def axes_first(tree: ModuleTree, axes: Mapping[str, Mapping[Path, Sequence[int]]], path: Path = "") -> Iterator[None]:
    """Shows the outputs of layers with other axes in front while the block runs: to Captum, and to our own hooks.

    A module that returns what it gets stands in the tree for the layer. The layer's output runs through it, transposed,
    and back: the model computes the same.

    Args:
        tree: the modules.
        axes: by layer, the axes of each of its tensors that come first, in this order, by path.
        path: the one tensor that is shown, by itself; ``""`` shows what the layers return.
    """
    layers = {name: tree.modules[name] for name in axes}
    handles = []
    for name, layer in layers.items():
        tree.modules[name] = nn.Identity()
        handles.append(layer.register_forward_hook(partial(_transposed, tree.modules[name], axes[name], path)))
    try:
        yield
    finally:
        tree.modules.update(layers)
        for handle in handles:
            handle.remove()


def _transposed(
    stand_in: nn.Module,
    axes: Mapping[Path, Sequence[int]],
    path: Path,
    _layer: nn.Module,
    _args: object,
    output: Any,
) -> Any:
    """Runs a layer's output through ``stand_in`` with ``axes`` in front, and moves the axes back. This is the forward
    hook of `axes_first`."""

    def moved(value: Any, *, back: bool) -> Any:
        def move(path: Path, tensor: Tensor) -> Tensor:
            own = tuple(axes.get(path, ()))
            first = tuple(range(len(own)))
            return tensor.movedim(first, own) if back else tensor.movedim(own, first)

        with HookScope([]):  # these operators are not the model's
            return map_leaves(value, move)

    first = moved(output, back=False)
    if not path:
        return moved(stand_in(first), back=True)
    if path not in (tensors := leaves(first)):
        return None  # this call returns no such tensor
    shown = stand_in(tensors[path])
    return moved(map_leaves(first, lambda at, tensor: shown if at == path else tensor), back=True)


# Cancellation inside a pass. A hook on every module would slow all passes, so a thread adds one when a caller has gone.

_WATCH_S = 0.05
_HOOKS_PER_S = 500
"""Nodes of a graph that are hooked per second of its forward pass: about 1 % of its time; seconds are enough for all.
A count, as a clock that stops for a moment would leave a backward pass without any."""


class CancelledPasses:
    """Ends a model's passes for callers that no longer wait: forward passes behind the next module, backward passes of
    models whose forward is slow at the next operation.

    Args:
        model: the model, whose passes run in blocks of `watching`.
    """

    def __init__(self, model: InspectedModel) -> None:
        self._model = model
        self._handle: RemovableHandle | None = None
        self._lock = threading.Lock()
        self._watcher = threading.Thread()
        self._threads: set[int] = set()
        model.after_slow_forward = self._watch_backward

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Ends passes of the block, in its thread, whose callers no longer wait."""
        self._threads.add(threading.get_ident())
        if not self._watcher.is_alive():  # nor in a process that was forked
            watched = (weakref.ref(self),)
            self._watcher = threading.Thread(target=_watch, args=watched, name="cutaway-cancelled-passes", daemon=True)
            self._watcher.start()
        try:
            yield
        finally:
            self._threads.discard(threading.get_ident())
            self.update()

    def update(self) -> None:
        """Adds the hook if the caller no longer waits, and removes it if another one does."""
        with self._lock:
            is_cancelled = self._model.cancellation.is_cancelled
            if is_cancelled and self._handle is None:
                self._handle = register_module_forward_hook(self._after_module)
            elif self._handle is not None and not is_cancelled:
                self._handle.remove()
                self._handle = None

    def _after_module(self, *_: Any) -> None:
        if threading.get_ident() in self._threads:  # others may run other models
            self._model.cancellation.raise_if_cancelled()

    def _watch_backward(self, outputs: Outputs, seconds: float) -> None:
        """Adds hooks to the graph of a slow forward pass, so that its backward pass ends if the caller no longer
        waits."""

        def before_node(_: Any) -> None:
            self._model.cancellation.raise_if_cancelled()

        known: set[Any] = set()
        nodes = (node for output in outputs.values() for node in graph_nodes(output.grad_fn, known))
        for node in islice(nodes, int(_HOOKS_PER_S * seconds)):
            if node.next_functions:  # a leaf of the graph may belong to a parameter, and would keep the hook
                node.register_prehook(before_node)


def _watch(watched: weakref.ref[CancelledPasses]) -> None:
    """Updates ``watched`` until its worker is gone."""
    while (passes := watched()) is not None:
        passes.update()
        del passes
        time.sleep(_WATCH_S)
