"""The one place that registers hooks.

    with observing(tree, {"conv1": {Point.OUTPUT, Point.GRAD_OUTPUT}}) as seen:
        with seen.forward():
            outputs = model(x)
        torch.autograd.grad(outputs.sum(), seen.gradient_roots, allow_unused=True)
    seen.calls["conv1"][0].at(Point.GRAD_OUTPUT)[""]      # a tensor on the host

A forward pre-hook and a forward hook see what goes in and out. For the gradients, PyTorch's own full backward hook
puts a view of each tensor into the graph and hooks it: any in-place operation nearby then raises, dicts are never
seen, nor tensors passed by keyword. The same two places are hooked here the same way, but on a *copy* of each tensor
(`Tensor.register_hook`), which in-place operations may change at will. What is seen is what a full backward hook
sees, also for a module that returns its own input, where a hook on the bare tensor would add up other branches'
gradients.

What a hook sees is copied to the host when it fires, before anything later can overwrite it. All hooks are gone when
the block ends, whatever ended it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from cutaway.engine.leaves import Path, leaves, map_leaves
from cutaway.engine.modules import ModuleTree
from cutaway.requests import Point

Taps: TypeAlias = Mapping[str, Set[Point]]
"""Module names to the points observed there."""


class Call:
    """What one call of a module showed."""

    def __init__(self) -> None:
        # A gradient is None until a backward pass brings it, but keeps its place among the module's tensors.
        self._seen: dict[Point, dict[Path, Tensor | None]] = {}

    def at(self, point: Point) -> dict[Path, Tensor]:
        """The tensors at ``point`` by path, on the host, in the order in which the module takes or returns them."""
        return {path: tensor for path, tensor in self._seen.get(point, {}).items() if tensor is not None}

    def note(self, point: Point, path: Path, tensor: Tensor | None) -> None:
        """Keep a copy of ``tensor``, or its place."""
        self._seen.setdefault(point, {})[path] = None if tensor is None else on_host(tensor)


class Copied(NamedTuple):
    """A tensor that was replaced by a copy, and both versions at that moment."""

    original: Tensor
    copy: Tensor
    versions: tuple[int, int]

    @property
    def changed(self) -> bool:
        """Whether an in-place operation has since made the two differ."""
        return (self.original._version, self.copy._version) != self.versions


class Seen:
    """What the hooks saw so far.

    Attributes:
        calls: by module name, one element for each call, in the order in which the calls began.
        gradient_roots: where the gradient points lie in the graph. A backward pass that is to show them must reach
            them: hand them to ``torch.autograd.grad`` as inputs.
    """

    def __init__(self, taps: Taps) -> None:
        self.calls: dict[str, list[Call]] = {name: [] for name in taps}
        self.gradient_roots: list[GradientEdge] = []
        self._shared: list[Copied] = []
        self._in_forward = False

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Around each forward pass: a gradient that a model takes inside its forward is not the target's."""
        self._in_forward = True
        try:
            yield
        finally:
            self._in_forward = False

    @property
    def entangled(self) -> bool:
        """Whether an in-place operation changed a tensor that was replaced by a copy while somebody else held it: the
        model may then have computed something else than without hooks."""
        return any(copied.changed for copied in self._shared)


def on_host(tensor: Tensor) -> Tensor:
    """A copy of ``tensor``'s values now, outside of any graph, on the host."""
    return tensor.detach().resolve_conj().resolve_neg().to("cpu", copy=True)


@contextmanager
def observing(tree: ModuleTree, taps: Taps, *, copies: bool = True, seen: Seen | None = None) -> Iterator[Seen]:
    """Observe the modules in ``taps`` for as long as the block runs.

    Args:
        tree: the modules.
        taps: which of them, and where.
        copies: False hooks bare tensors where that shows the same, and leaves what the model computes, and what other
            hooks see, untouched to the last bit.
        seen: where to note what is seen, from an earlier block; by default a new one.

    Yields:
        What was seen; it fills as passes run, and stays readable afterwards.
    """
    found = Seen(taps) if seen is None else seen
    with ExitStack() as handles:
        for name, points in taps.items():
            for handle in _Tap(found, name, points, copies).register(tree.modules[name]):
                handles.callback(handle.remove)
        yield found


class _Tap:
    """The hooks on one module. Calls are numbered as they begin, so that all points of a call meet in one record."""

    def __init__(self, seen: Seen, name: str, points: Set[Point], copies: bool) -> None:
        self._seen = seen
        self._name = name
        self._points = points
        self._copies = copies
        self._open: list[tuple[Call, list[Tensor]]] = []
        # Only a gradient at what comes out asks whether that is still what went in.
        self._outgoing = Point.GRAD_OUTPUT in points

    def register(self, module: nn.Module) -> list[RemovableHandle]:
        """Sit down on ``module``. The hook behind is called also where forward raises, so that a call that fails and
        is caught does not leave its record to the call around it."""
        return [
            module.register_forward_pre_hook(self._before, with_kwargs=True),
            module.register_forward_hook(self._after, with_kwargs=True, always_call=True),
        ]

    def _before(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        call = Call()
        if not _in_backward():
            self._seen.calls[self._name].append(call)
        taken = [*leaves(args).values(), *leaves(kwargs).values()] if self._outgoing else []
        self._open.append((call, taken))

        def see(path: Path, tensor: Tensor) -> Tensor:
            return self._see(call, (Point.INPUT, Point.GRAD_INPUT), path, tensor, shared=True)

        bare = len(args) == 1 and not kwargs
        args = (map_leaves(args[0], see),) if bare else map_leaves(args, see)
        return args, {key: map_leaves(value, see, key) for key, value in kwargs.items()}

    def _after(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        call, taken = self._open.pop()
        taken += [*leaves(args).values(), *leaves(kwargs).values()] if self._outgoing else []

        def see(path: Path, tensor: Tensor) -> Tensor:
            shared = any(_overlap(tensor, each) for each in taken)
            return self._see(call, (Point.OUTPUT, Point.GRAD_OUTPUT), path, tensor, shared)

        return map_leaves(output, see)

    def _see(self, call: Call, here: tuple[Point, Point], path: Path, tensor: Tensor, shared: bool) -> Tensor:
        """Note ``tensor``, and take its gradient. ``shared``: somebody else may hold the same numbers."""
        value_point, gradient_point = here
        if not _is_plain(tensor):
            return tensor
        if value_point in self._points:
            call.note(value_point, path, tensor)
        if gradient_point not in self._points or not _differentiable(tensor):
            return tensor
        node = tensor
        if self._copies or shared or tensor.is_leaf:
            node = _copy(tensor)
            if shared:
                self._seen._shared.append(Copied(tensor, node, (tensor._version, node._version)))
        call.note(gradient_point, path, None)
        if not _in_backward():
            self._listen(node, call, gradient_point, path)
        return node

    def _listen(self, node: Tensor, call: Call, point: Point, path: Path) -> None:
        # The edge is the tensor's place in the graph now: an in-place operation moves the tensor, not the edge.
        self._seen.gradient_roots.append(get_gradient_edge(node))

        def note(gradient: Tensor) -> None:
            if not self._seen._in_forward:
                call.note(point, path, gradient)

        node.register_hook(note)


def _copy(tensor: Tensor) -> Tensor:
    """A copy that is a node of the graph, also where none leads to ``tensor`` yet (behind an embedding of token ids
    with frozen weights)."""
    source = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
    return source.clone()


def _differentiable(tensor: Tensor) -> bool:
    return torch.is_grad_enabled() and (tensor.is_floating_point() or tensor.is_complex())


def _is_plain(tensor: Tensor) -> bool:
    # Tensors inside torch.vmap and nested ones have no array behind them that could be copied out.
    return not (tensor.is_nested or torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def _overlap(one: Tensor, other: Tensor) -> bool:
    if one is other:
        return True
    if not (_is_plain(one) and _is_plain(other)):
        return False
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _in_backward() -> bool:
    # Activation checkpointing runs a module's forward again during the backward pass. That is no new call; but the
    # graph must become what it was, copies included.
    return bool(torch._C._current_graph_task_id() != -1)
