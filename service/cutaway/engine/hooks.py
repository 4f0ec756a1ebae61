"""The one place that registers hooks.

    with observing(tree, {"conv1": watching(Point.OUTPUT, Point.GRAD_OUTPUT)}) as seen:
        with seen.forward():
            outputs = model(x)
        torch.autograd.grad(outputs.sum(), seen.gradient_roots, allow_unused=True)
    seen.calls["conv1"][0].at(Point.GRAD_OUTPUT)[""]      # a tensor on the host

A forward pre-hook and a forward hook see what goes in and out, and may change it. For the gradients, PyTorch's own full
backward hook puts a view of each tensor into the graph and hooks it: any in-place operation nearby then raises, dicts
are never seen, nor tensors passed by keyword. The same two places are hooked here the same way, but on a *copy* of each
tensor (`Tensor.register_hook`), which in-place operations may change at will. What is seen is what a full backward hook
sees, also for a module that returns its own input, where a hook on the bare tensor would add up other branches'
gradients; and what the hook returns flows on upstream.

What a hook sees is copied to the host when it fires, before anything later can overwrite it. All hooks are gone when
the block ends, whatever ended it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias, TypeVar

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from cutaway.engine.leaves import incoming, leaves, map_leaves, put_back
from cutaway.engine.modules import ModuleTree
from cutaway.engine.operators import Operators, is_address
from cutaway.engine.seen import Call, Seen
from cutaway.engine.tap import INCOMING, OUTGOING, Numbered, Tap, overlap
from cutaway.engine.wishes import Wish
from cutaway.requests import Point

T = TypeVar("T")

Taps: TypeAlias = Mapping[str, Mapping[Point, Wish]]
"""Names of modules, and addresses of operators, to what is wanted at their points."""


@contextmanager
def observing(
    tree: ModuleTree,
    taps: Taps,
    edits: Mapping[str, Sequence[Numbered]] | None = None,
    *,
    batch: int = 0,
    alive: str | None = None,
    copies: bool = True,
    seen: Seen | None = None,
) -> Iterator[Seen]:
    """Observe and edit for as long as the block runs.

    Args:
        tree: the modules.
        taps: what is wanted, by module name or operator address, the latter perhaps a glob.
        edits: what is changed, by module name or operator address, in the order in which it is done.
        batch: how many rows the request has, for edits of some rows.
        alive: the module whose first output is wanted as a node of the graph.
        copies: False hooks bare tensors where that shows the same, and leaves what the model computes, and what other
            hooks see, untouched to the last bit.
        seen: where to note what is seen, from an earlier block; by default a new one.

    Yields:
        What was seen; it fills as passes run, and stays readable afterwards. A new one lets go of the graph at the
        block's end.
    """
    found = Seen() if seen is None else seen
    changes = edits or {}

    def tap(name: str, wishes: Mapping[Point, Wish], numbered: Sequence[Numbered]) -> Tap:
        return Tap(found, name, wishes, numbered, batch, copies, alive=name == alive)

    names = list(dict.fromkeys([*taps, *changes, *([] if alive is None else [alive])]))
    for name in names:
        found.calls.setdefault(name, [])
    inside = [name for name in names if is_address(name)]
    handles: list[RemovableHandle] = []
    with ExitStack() as ends:
        if seen is None:
            ends.callback(found.release)
        ends.callback(_remove, handles)
        if inside:
            ops = Operators(found, tap, _only(taps, inside), _only(changes, inside))
            handles.extend(_following(tree, ops))
            ends.enter_context(ops)
        for name in names:
            if name not in inside:
                hooks = _ModuleHooks(found, tap(name, taps.get(name, {}), changes.get(name, ())))
                handles.extend(hooks.register(tree.modules[name]))
        yield found


def _remove(handles: Sequence[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


def _only(places: Mapping[str, T], names: Sequence[str]) -> dict[str, T]:
    return {name: places[name] for name in names if name in places}


def _following(tree: ModuleTree, ops: Operators) -> Iterator[RemovableHandle]:
    """Hooks that say whose forward runs; before all others, so that they see each forward begin and end."""
    for name, module in tree.modules.items():
        yield module.register_forward_pre_hook(ops.entering(name), prepend=True)
        yield module.register_forward_hook(ops.leave, prepend=True, always_call=True)


class _ModuleHooks:
    """The hooks on one module. Calls are numbered as they begin, so that all points of a call meet in one record."""

    def __init__(self, seen: Seen, tap: Tap) -> None:
        self._seen = seen
        self._tap = tap
        self._open: list[tuple[Call, list[Tensor]]] = []
        # Only a gradient at what comes out asks whether that is still what went in.
        self._outgoing = tap.listens(OUTGOING)
        self._only_notes_in, self._only_notes_out = tap.only_notes(INCOMING), tap.only_notes(OUTGOING)

    def register(self, module: nn.Module) -> Iterator[RemovableHandle]:
        """Sit down on ``module``. The hook behind is called also where forward raises, so that a call that fails and
        is caught does not leave its record to the call around it."""
        yield module.register_forward_pre_hook(self._before, with_kwargs=True)
        yield module.register_forward_hook(self._after, with_kwargs=True, always_call=True)

    def _before(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        with self._seen.hook():
            call = self._tap.begin()
            self._open.append((call, self._taken(args, kwargs)))
            tensors = incoming(args, kwargs)
            if self._only_notes_in:
                self._tap.notes(call, INCOMING, tensors)
                return None
            return put_back(args, kwargs, self._tap.through(call, INCOMING, tensors, shared=lambda _: True))

    def _after(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        with self._seen.hook():
            call, taken = self._open.pop()
            tensors = leaves(output)
            if self._only_notes_out:
                self._tap.notes(call, OUTGOING, tensors)
                return None
            taken += self._taken(args, kwargs)
            gone_on = self._tap.through(
                call, OUTGOING, tensors, shared=lambda tensor: any(overlap(tensor, each) for each in taken)
            )
            return map_leaves(output, lambda path, _: gone_on[path])

    def _taken(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        return [*leaves(args).values(), *leaves(kwargs).values()] if self._outgoing else []
