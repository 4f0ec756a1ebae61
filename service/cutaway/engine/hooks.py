"""The one place that registers hooks.

    with observing(tree, {"conv1": {Point.OUTPUT, Point.GRAD_OUTPUT}}) as seen:
        outputs = model(x)
        torch.autograd.grad(outputs.sum(), seen.gradient_roots)
    seen.calls["conv1"][0][Point.GRAD_OUTPUT][""]      # a tensor on the host

A forward pre-hook and a forward hook see what goes in and out. For the gradients, PyTorch's own full backward hook
puts a view of each tensor into the graph and hooks it: any in-place operation nearby then raises, dicts are never
seen, nor tensors passed by keyword. The same two places are hooked here the same way, but on a *copy* of each tensor
(`Tensor.register_hook`), which in-place operations may change at will. What is seen is what a full backward hook sees,
also for a module that returns its own input, where a hook on the bare tensor would add up other branches' gradients.

What a hook sees is copied to the host when it fires, before anything later can overwrite it. All hooks are gone when
the block ends, whatever ended it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from cutaway.engine.leaves import Path, map_leaves
from cutaway.engine.modules import ModuleTree
from cutaway.requests import Point

Taps: TypeAlias = Mapping[str, Set[Point]]
"""Module names to the points observed there."""

Call: TypeAlias = dict[Point, dict[Path, Tensor]]
"""What one call of a module showed: by point, the tensors by path, on the host."""


class Seen:
    """What the hooks saw so far.

    Attributes:
        calls: by module name, one element for each call, in the order in which the calls began.
        gradient_roots: the tensors in the graph at the gradient points. A backward pass that is to show them must
            reach them: hand them to ``torch.autograd.grad`` as inputs.
    """

    def __init__(self, taps: Taps) -> None:
        self.calls: dict[str, list[Call]] = {name: [] for name in taps}
        self.gradient_roots: list[Tensor] = []

    def _note(self, call: Call, point: Point, path: Path, tensor: Tensor) -> None:
        call.setdefault(point, {})[path] = on_host(tensor)


def on_host(tensor: Tensor) -> Tensor:
    """A copy of ``tensor``'s values now, outside of any graph, on the host."""
    return tensor.detach().to("cpu", copy=True)


@contextmanager
def observing(tree: ModuleTree, taps: Taps) -> Iterator[Seen]:
    """Observe the modules in ``taps`` for as long as the block runs.

    Yields:
        What was seen; it fills as passes run, and stays readable afterwards.
    """
    seen = Seen(taps)
    with ExitStack() as handles:
        for name, points in taps.items():
            for handle in _tap(tree[name] if name else tree.root, name, points, seen):
                handles.callback(handle.remove)
        yield seen


def _tap(module: nn.Module, name: str, points: Set[Point], seen: Seen) -> list[RemovableHandle]:
    """Hook one module. Calls are numbered as they begin, so that all points of a call meet in one record."""
    open_calls: list[Call] = []

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        if _in_backward():
            return None
        call: Call = {}
        seen.calls[name].append(call)
        open_calls.append(call)

        def see(path: Path, tensor: Tensor) -> Tensor:
            return _see(seen, call, points, (Point.INPUT, Point.GRAD_INPUT), path, tensor)

        bare = len(args) == 1 and not kwargs
        args = (map_leaves(args[0], see),) if bare else map_leaves(args, see)
        kwargs = {key: map_leaves(value, see, key) for key, value in kwargs.items()}
        return args, kwargs

    def after(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if _in_backward():
            return None
        call = open_calls.pop()

        def see(path: Path, tensor: Tensor) -> Tensor:
            return _see(seen, call, points, (Point.OUTPUT, Point.GRAD_OUTPUT), path, tensor)

        return map_leaves(output, see)

    return [
        module.register_forward_pre_hook(before, with_kwargs=True),
        module.register_forward_hook(after, with_kwargs=True),
    ]


def _see(seen: Seen, call: Call, points: Set[Point], here: tuple[Point, Point], path: Path, tensor: Tensor) -> Tensor:
    value_point, gradient_point = here
    if value_point in points:
        seen._note(call, value_point, path, tensor)
    if gradient_point not in points or not tensor.is_floating_point():
        return tensor
    root = gradient_root(tensor)
    if root is None:
        return tensor
    seen.gradient_roots.append(root)
    root.register_hook(lambda gradient: seen._note(call, gradient_point, path, gradient))
    return root


def _in_backward() -> bool:
    # Activation checkpointing runs a module's forward again during the backward pass: that is no new call.
    return bool(torch._C._current_graph_task_id() != -1)


def gradient_root(tensor: Tensor) -> Tensor | None:
    """A copy of ``tensor`` whose gradient can be taken: a node of the graph, or a new leaf where there is no graph
    yet (behind an embedding of token ids with frozen weights). None where no graph is being built."""
    if not torch.is_grad_enabled():
        return None
    copy = tensor.clone()
    return copy if copy.requires_grad else copy.requires_grad_()
