"""Forward-mode derivatives of a model as it stands: through `torch.autograd.Function` without ``jvp``, and past detach.

    with tangents_pass():
        output = model(forward_ad.make_dual(x, v))
        tangent = forward_ad.unpack_dual(output).tangent      # J v

Forward mode follows the values that the model computes, wherever they go. Some things would hide a part of them:

- A custom function without ``jvp`` refuses, and one with ``jvp`` says there what its author also believed of
  ``backward``. Its derivative along the tangents is taken by central differences of the function alone, in float64; if
  it cannot run in float64, the operators in its ``forward`` are differentiated, and its ``jvp`` is taken last.
- ``detach``, ``.data``, ``nn.Parameter`` and inference mode drop the tangent. Inside the block they keep it: what is
  detached from the backward pass still changes with the input.
- Numbers that leave PyTorch (``numpy``, ``tolist``, ``item``) have no tangent: the block notes them.
- A module's full backward hooks put functions without ``jvp`` into the graph. They change no value, and are left out.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd import Function, forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.overrides import TorchFunctionMode

# Autocast and a model's own casts show in the data types of its operators only.

_STEP = torch.finfo(torch.float64).eps ** (1 / 3)
"""The length of a step, relative to the values: errors from curvature and from rounding are about equal there."""

_AGREEMENT = 1e-4
"""How much two differences with steps of other lengths may differ: more means that float64 was not kept inside."""

Apply: TypeAlias = Callable[..., Any]

_PATCHING = threading.RLock()


class ForwardModeRefused(Exception):
    """An operation of the model has no forward-mode derivative."""


@contextmanager
def tangents_pass(modules: Sequence[nn.Module]) -> Iterator[list[str]]:
    """Lets a forward pass of ``modules`` on dual tensors carry tangents to its end; see the module's docstring.

    What `torch.autograd.Function.apply` calls, and `torch.nn.Parameter`, are replaced meanwhile, for this thread only.

    Yields:
        The names of functions through which numbers with a tangent left PyTorch.
    """
    left: list[str] = []
    with ExitStack() as ends, _PATCHING, forward_ad.dual_level():
        ends.enter_context(_without_backward_hooks(modules))
        ends.enter_context(_functions_with_tangents())
        ends.enter_context(_parameters_with_tangents())
        ends.enter_context(_KeepTangents(left))
        yield left


class _KeepTangents(TorchFunctionMode):
    """A mode that keeps the tangents of detached tensors, and notes where the model reads their numbers."""

    def __init__(self, left: list[str]) -> None:
        super().__init__()
        self._left = left

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        if func in _DETACHING and _tangent(args[0]) is not None:
            return args[0].view_as(args[0])
        if func in _LEAVING and _tangent(args[0]) is not None:
            self._left.append(func.__name__)
            return func(forward_ad.unpack_dual(args[0]).primal.detach(), *args[1:], **keywords)
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False), torch.no_grad():
                return func(*args, **keywords)
        return func(*args, **keywords)


_DETACHING = (Tensor.detach, torch.detach, Tensor.detach_, Tensor.data.__get__)  # type: ignore[attr-defined]

_LEAVING = (Tensor.numpy, Tensor.tolist, Tensor.item, Tensor.__array__, Tensor.__float__)


@contextmanager
def _replaced(owner: type, name: str, attribute: Any) -> Iterator[None]:
    intact = owner.__dict__[name]
    setattr(owner, name, attribute)
    try:
        yield
    finally:
        setattr(owner, name, intact)


def _parameters_with_tangents() -> AbstractContextManager[None]:
    intact, thread = nn.Parameter.__new__, threading.get_ident()

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        kept = threading.get_ident() == thread and _tangent(data) is not None
        return data.view_as(data) if kept else intact(cls, data, requires_grad)

    return _replaced(nn.Parameter, "__new__", new)


@contextmanager
def _without_backward_hooks(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Removes the full backward hooks of ``modules`` meanwhile: PyTorch wraps their calls in a function without jvp."""
    kept = [(module, module._backward_hooks, module._backward_pre_hooks) for module in modules]
    for module in modules:
        module._backward_hooks, module._backward_pre_hooks = OrderedDict(), OrderedDict()
    try:
        yield
    finally:
        for module, hooks, pre_hooks in kept:
            module._backward_hooks, module._backward_pre_hooks = hooks, pre_hooks


@contextmanager
def _functions_with_tangents() -> Iterator[None]:
    """Replaces what `torch.autograd.Function.apply` looks up in its base class.

    ``op = MyFunction.apply`` at import time keeps `Function.apply` itself, so replacing that would miss the call.
    """
    thread = threading.get_ident()

    def apply(function: type[Function], *args: Any, **kwargs: Any) -> Any:
        bound = partial(super(_SingleLevelFunction, function).apply, **kwargs)  # type: ignore[misc]
        dual = any(_tangent(value) is not None for value in args)
        return _applied(function, bound, args) if dual and threading.get_ident() == thread else bound(*args)

    _SingleLevelFunction.apply = classmethod(apply)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del _SingleLevelFunction.apply  # type: ignore[attr-defined]


def _applied(function: type[Function], apply: Apply, args: Sequence[Any]) -> Any:
    """Returns the outputs of a custom function with their tangents."""
    primals = [forward_ad.unpack_dual(value).primal if isinstance(value, Tensor) else value for value in args]
    tangents = [_tangent(value) for value in args]
    with torch.no_grad():
        changes = _differences(apply, primals, tangents)
    if changes is None:
        return _unrolled(function, apply, args)
    outputs = apply(*primals)
    duals = [
        _with_tangent(output, change, primals, args) if _is_floating(output) else output
        for output, change in zip(_several(outputs), changes)
    ]
    return type(outputs)(duals) if isinstance(outputs, (tuple, list)) else duals[0]


def _with_tangent(output: Tensor, change: Tensor, primals: Sequence[Any], args: Sequence[Any]) -> Tensor:
    """Returns ``output`` with its tangent: an argument itself where the function has changed that in place."""
    dual = forward_ad.make_dual(output, change.to(output.dtype))
    changed: Tensor | None = next((arg for arg, primal in zip(args, primals) if primal is output), None)
    return dual if changed is None else changed.copy_(dual)


def _differences(apply: Apply, primals: Sequence[Any], tangents: Sequence[Tensor | None]) -> list[Tensor] | None:
    """Returns the derivative of each output along ``tangents``, by central differences in float64; None if the
    function does not compute in float64."""
    doubles = [value.double() if _is_floating(value) else value for value in primals]
    along = [None if tangent is None else tangent.double() for tangent in tangents]
    moved = [(value, tangent) for value, tangent in zip(doubles, along) if tangent is not None]
    longest = max(float(tangent.abs().max()) for _, tangent in moved) or 1.0
    size = max(float(value.abs().mean()) for value, _ in moved) or 1.0

    def moved_by(step: float, value: Any, tangent: Tensor | None) -> Any:
        copy = value.clone() if isinstance(value, Tensor) else value  # the function may change it in place
        return copy if tangent is None else copy + step * tangent

    def slopes(step: float) -> list[Tensor]:
        ends = [_several(apply(*(moved_by(sign * step, x, v) for x, v in zip(doubles, along)))) for sign in (1, -1)]
        return [(ahead - behind) / (2 * step) if _is_floating(ahead) else ahead for ahead, behind in zip(*ends)]

    try:
        one, other = (slopes(length * _STEP * size / longest) for length in (1.0, 0.25))
    except Exception:  # whatever a function of float32 raises for float64
        return None
    pairs = [(a, b) for a, b in zip(one, other) if _is_floating(a)]
    exact = all(a.dtype is torch.float64 and float((a - b).norm()) <= _AGREEMENT * float(a.norm()) for a, b in pairs)
    return one if exact else None


def _unrolled(function: type[Function], apply: Apply, args: Sequence[Any]) -> Any:
    """Runs the operators of a custom function's ``forward`` on dual tensors, or trusts its ``jvp``."""
    context = SimpleNamespace(
        save_for_backward=_ignore, save_for_forward=_ignore, mark_dirty=_ignore, mark_non_differentiable=_ignore,
        set_materialize_grads=_ignore, needs_input_grad=[False] * len(args),
    )  # fmt: skip
    separate = function.setup_context is not Function.setup_context
    left: list[str] = []
    with _KeepTangents(left):
        outputs = function.forward(*args) if separate else function.forward(context, *args)
    if not left and any(_tangent(output) is not None for output in _several(outputs)):
        return outputs
    if function.jvp is not Function.jvp:
        return apply(*args)
    raise ForwardModeRefused(function.__name__)


def _ignore(*_: Any) -> None:
    """Replaces a method of the context of a custom function."""


def _tangent(value: Any) -> Tensor | None:
    return forward_ad.unpack_dual(value).tangent if isinstance(value, Tensor) else None


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _several(outputs: Any) -> Sequence[Any]:
    return outputs if isinstance(outputs, (tuple, list)) else (outputs,)
