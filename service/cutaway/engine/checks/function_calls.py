"""Calls of custom functions (`torch.autograd.Function`), seen wherever ``apply`` comes from.

``op = MyFunction.apply`` at import time keeps PyTorch's native code, so nothing can take its place. That code looks up
names in Python, in this order, for each call:

1. ``MyFunction._backward_cls``, which nobody else does: a call begins.
2. ``MyFunction.forward``, which it calls with the arguments; then ``setup_context``, where a function has one.
3. ``apply_jvp`` of the context, which it calls with the tangents of the arguments, if any has one.

``MyFunction.apply`` before PyTorch 2.14, which is Python, calls the native code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.autograd.function import BackwardCFunction, FunctionMeta
from torch.overrides import _get_current_function_mode_stack

from cutaway.engine.hooks.observe import repeating_calls
from cutaway.engine.hooks.operators import Operators
from cutaway.engine.runtime.rng import held, kept_rng_state, lent

Apply: TypeAlias = Callable[..., Any]
Call: TypeAlias = Callable[[type[Function], Apply, Sequence[Any]], Any]

_PATCHING = threading.RLock()


@contextmanager
def patching() -> Iterator[None]:
    """Lets no other thread replace functions of PyTorch during the block, nor draw random numbers from a seed.

    Who replaces functions also draws, and would wait for one that draws and replaces: so it lends while it waits.
    """
    with held():
        if not _PATCHING.acquire(blocking=False):
            with kept_rng_state(torch.device("cpu")), lent():
                _PATCHING.acquire()
        try:
            yield
        finally:
            _PATCHING.release()


class _Calls:
    """The calls of native ``apply`` in one thread, and what is done at each.

    Args:
        call: see `calling_functions`.
        has_tangents: whether ``call`` is for the tangents of the outputs, or for the gradients that arrive there.
    """

    def __init__(self, call: Call, has_tangents: bool) -> None:
        self._call = call
        self._has_tangents = has_tangents
        self._thread = threading.get_ident()
        self._begun: type[Function] | None = None
        self._own = 0
        self._tangents: list[tuple[type[Function], list[Tensor | None]]] = []
        self._waiting: tuple[type[Function], Sequence[Any]] | None = None

    def looked_up(self, function: Any, name: str) -> Any:
        """Returns the attribute ``name`` of a custom function. When native ``apply`` looks up ``forward`` for a call,
        returns a wrapper that shows the call to ``call``."""
        value = type.__getattribute__(function, name)
        if threading.get_ident() != self._thread:
            return value
        if name == "_backward_cls":
            self._begun, self._own = (None, self._own - 1) if self._own else (function, 0)
        elif name == "forward" and self._begun is not None and self._begun is function:
            self._begun = None
            return partial(self._forward if self._has_tangents else self._recorded, function, value)
        elif name == "setup_context" and self._waiting and self._waiting[0] is function:
            outputs, self._waiting = self._waiting[1], None
            return partial(self._set_up, value, outputs)
        return value

    def _forward(self, function: type[Function], forward: Callable[..., Any], *args: Any) -> Any:
        """Stands in for ``forward`` in a forward-mode pass. Before ``forward`` runs, ``call`` computes the tangents of
        the outputs, which `tangents_of` returns later."""
        given = _given(function, args)
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            if any(tangent_of(value) is not None for value in given):
                with repeating():
                    outputs = self._call(function, partial(self._fresh, function), copied(given))
                self._tangents.append((function, [*map(tangent_of, several(outputs))]))
        return forward(*args)

    def _recorded(self, function: type[Function], forward: Callable[..., Any], *args: Any) -> Any:
        """Stands in for ``forward`` in a pass with gradients. ``call`` applies the function; hooks that ``call``
        registers on the outputs get the gradients that arrive there."""
        returned: list[Any] = []

        def apply(*given: Any) -> Any:
            if returned:
                return self._fresh(function, *given)
            with torch.no_grad():  # as native code calls it
                returned.append(forward(*args))
            shown = [_shown(output) for output in several(returned[0])]
            if _is_separate(function):
                self._waiting = function, shown
            else:
                _pass_gradients(args[0], shown)
            return shown

        with torch.enable_grad():
            self._call(function, apply, _given(function, args))
        return returned[0]

    def _set_up(self, setup: Callable[..., Any], shown: Sequence[Any], context: Any, *more: Any) -> Any:
        _pass_gradients(context, shown)
        return setup(context, *more)

    def _fresh(self, function: type[Function], *args: Any) -> Any:
        """Applies the function once more, as a call of our own that ``call`` does not see."""
        before, self._own = self._own, self._own + 1
        try:
            return function.apply(*args)
        finally:
            self._own = before  # also if it refused its arguments before the call began

    def tangents_of(self, function: type[Function]) -> list[Tensor | None] | None:
        """Returns the tangents of the outputs of the call that ran last; None for another thread's."""
        while self._tangents and threading.get_ident() == self._thread:
            known, tangents = self._tangents.pop()
            if known is function:
                return tangents
        return None


@contextmanager
def repeating() -> Iterator[None]:
    """Lets the block run calls and operators of the model again, without an effect on the numbers of later ones."""
    with repeating_calls(), ExitStack() as ends:
        for mode in _get_current_function_mode_stack():
            if isinstance(mode, Operators):
                ends.enter_context(mode.repeating())
        yield


def tangent_of(value: Any) -> Tensor | None:
    """Returns the tangent of a tensor that has one; a sparse one has none."""
    is_plain = isinstance(value, Tensor) and value.layout is torch.strided
    return forward_ad.unpack_dual(value).tangent if is_plain else None


def copied(values: Iterable[Any]) -> list[Any]:
    """Returns copies of a function's arguments, which it may change in place."""
    return [value.clone() if isinstance(value, Tensor) else value for value in values]


def is_floating(value: Any) -> bool:
    """Returns whether ``value`` is a tensor of floats, or of complex numbers."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def several(outputs: Any) -> Sequence[Any]:
    """Returns the outputs of a function, of which there may be one."""
    return outputs if isinstance(outputs, (tuple, list)) else (outputs,)


def _is_separate(function: type[Function]) -> bool:
    return function.setup_context is not Function.setup_context


def _given(function: type[Function], args: tuple[Any, ...]) -> tuple[Any, ...]:
    return args if _is_separate(function) else args[1:]


def _shown(output: Any) -> Any:
    """Returns a leaf in place of an output, which has no graph yet: its hooks are called by `_pass_gradients`."""
    return output.detach().requires_grad_() if is_floating(output) else output


def _pass_gradients(context: Any, shown: Sequence[Any]) -> None:
    """Calls the hooks of ``shown`` with the gradients that arrive at the node of ``context``."""

    def arrived(gradients: Sequence[Tensor | None]) -> None:
        for output, gradient in zip(shown, gradients):
            hooks: Mapping[int, Callable[[Tensor | None], None]] = getattr(output, "_backward_hooks", None) or {}
            for hook in hooks.values():
                hook(gradient)

    context.register_prehook(arrived)


@contextmanager
def calling_functions(call: Call, *, has_tangents: bool = False) -> Iterator[None]:
    """Lets ``call`` see every custom function while the block runs, in this thread.

    Args:
        call: gets the function, what applies it, and the arguments.
        has_tangents: ``call`` computes the tangents of the outputs, from copies of the arguments; otherwise it applies
            the function once, and may register hooks on the outputs.
    """
    calls = _Calls(call, has_tangents)
    jvp: Any = BackwardCFunction.apply_jvp

    def apply_jvp(context: Any, *given: Any) -> Any:
        tangents = calls.tangents_of(context._forward_cls)
        return jvp(context, *given) if tangents is None else tuple(tangents)

    with patching():
        FunctionMeta.__getattribute__ = lambda function, name: calls.looked_up(function, name)  # type: ignore[method-assign]
        BackwardCFunction.apply_jvp = apply_jvp  # type: ignore[method-assign]
        try:
            yield
        finally:
            del FunctionMeta.__getattribute__
            BackwardCFunction.apply_jvp = jvp  # type: ignore[method-assign]
