"""Forward-mode derivatives of a model as it stands: through `torch.autograd.Function` without ``jvp``, and past detach.

    with tangents_pass():
        output = model(forward_ad.make_dual(x, v))
        tangent = forward_ad.unpack_dual(output).tangent      # J v

Forward mode follows the values that the model computes, wherever they go. Some things would hide a part of them:

- A custom function without ``jvp`` refuses, and one with ``jvp`` says there what its author also believed of
  ``backward``. Its derivative along the tangents is taken by central differences of the function alone, in float64; if
  it cannot run in float64, the operators in its ``forward`` are differentiated. A function whose numbers leave PyTorch
  there is refused, and then tested by itself (`function_checks`).
- ``detach``, ``.data``, ``nn.Parameter`` and inference mode drop the tangent. Inside the block they keep it: what is
  detached from the backward pass still changes with the input.
- Numbers that leave PyTorch (``numpy``, ``tolist``, ``item``) have no tangent: the block notes them.
- Operators that round for training in eight bits have a gradient, and no ``jvp``: their gradient is taken for it.
- PyTorch's fused kernels for attention and for the LSTM have no ``jvp``, and its others have: attention is computed by
  the one of many operators, and an LSTM in float64, for which there is no fused one. PyTorch's switches of kernels are
  not touched: they are the process's, and models beside this one would compute other last bits.
- A module's full backward hooks put functions without ``jvp`` into the graph. They change no value, and are left out.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd import Function, forward_ad
from torch.nn import functional as F
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
)

from cutaway.engine.checks.function_calls import (
    Apply,
    calling_functions,
    copied,
    is_floating,
    patching,
    repeating,
    several,
    tangent_of,
)

# Autocast and a model's own casts show in the data types of its operators only.

_AGREEMENT = 1e-4
"""How much two differences with steps of other lengths may differ: more means that float64 was not kept inside."""


class ForwardModeRefused(Exception):
    """An operation of the model has no forward-mode derivative."""


@contextmanager
def tangents_pass(modules: Sequence[nn.Module]) -> Iterator[list[str]]:
    """Lets a forward pass of ``modules`` on dual tensors carry tangents to its end; see the module's docstring.

    What PyTorch calls of custom functions, and `torch.nn.Parameter`, are replaced meanwhile, for this thread only.

    Yields:
        The names of functions through which numbers with a tangent left PyTorch.
    """
    left: list[str] = []
    with ExitStack() as ends, patching(), forward_ad.dual_level():
        ends.enter_context(_without_backward_hooks(modules))
        ends.enter_context(calling_functions(partial(_with_tangents, left), has_tangents=True))
        ends.enter_context(_parameters_with_tangents())
        ends.enter_context(_modes([_KeepTangents(left), *_get_current_function_mode_stack()]))
        yield left


class _KeepTangents(TorchFunctionMode):
    """A mode that keeps the tangents of detached tensors, and notes where the model reads their numbers.

    It is below all other modes, as that of `torch.device` is: it may run an operator twice, and those that number and
    edit operators must see each of the model's once, with its tangent.
    """

    def __init__(self, left: list[str]) -> None:
        super().__init__()
        self._left = left

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        if func in _DETACHING and args and _keeps_tangents(args[0]):
            return args[0].view_as(args[0])
        if func in _LEAVING and args and tangent_of(args[0]) is not None:
            self._left.append(func.__name__)
            return func(forward_ad.unpack_dual(args[0]).primal.detach(), *args[1:], **keywords)
        if func in _ENTERING and len(args) > 1 and tangent_of(args[1]) is not None:
            self._left.append(func.__name__)
        if func in _ROUNDING and (tangent := tangent_of(args[0])) is not None:
            return _rounded(func, args, keywords, tangent)
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False), torch.no_grad():
                return _run(self, func, args, keywords)
        return _run(self, func, args, keywords)


def _keeps_tangents(tensor: Tensor) -> bool:
    """Returns whether a view shall take the place of the detached ``tensor``: it has a tangent, or what is written to
    the view may bring it one."""
    is_plain = tensor.layout is torch.strided and not tensor.is_nested
    return tangent_of(tensor) is not None or (is_plain and not tensor.requires_grad)


@contextmanager
def _modes(modes: Sequence[TorchFunctionMode]) -> Iterator[None]:
    """Replaces this thread's modes while the block runs; the last one sees an operator first."""
    before = _get_current_function_mode_stack()
    _set_modes(modes)
    try:
        yield
    finally:
        _set_modes(before)


def _set_modes(modes: Sequence[TorchFunctionMode]) -> None:
    for _ in _get_current_function_mode_stack():
        _pop_mode()
    for mode in modes:
        _push_mode(mode)


# Operators that are affine in the one argument that has a tangent. Their own ``jvp`` also multiplies by the zero
# tangents of the others, which takes as long again; or, for a few numbers, a hundred times as long: PyTorch finds out
# the shape of a product with zeros in Python.

_Arguments: TypeAlias = "tuple[Sequence[Any], dict[str, Any]]"


def _without_bias(at: int, moved: Any, weight: Any, bias: Any = None, *more: Any, **keywords: Any) -> _Arguments | None:
    return None if at else ((moved, weight, None, *more), keywords)


def _without_shift(
    at: int,
    moved: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    *more: Any,
    **keywords: Any,
) -> _Arguments | None:
    """Returns the arguments of the linear part of a batch norm; None where that depends on the batch."""
    if at or training or running_mean is None:
        return None
    return (moved, torch.zeros_like(running_mean), running_var, weight, None, False, *more), keywords


def _product(_: int, one: Any, other: Any, **keywords: Any) -> _Arguments | None:
    return None if keywords else ((one, other), {})


def _quotient(at: int, one: Any, other: Any, **keywords: Any) -> _Arguments | None:
    return None if at or keywords else ((one, other), {})


def _sum(at: int, *terms: Any, **keywords: Any) -> _Arguments | None:
    if keywords or len(terms) != 2:
        return None  # a third one is a factor
    return [_zeros(term) for term in terms], {}


def _product_and_term(at: int, term: Any, *factors: Any, **keywords: Any) -> _Arguments | None:
    if at == 0 or keywords or len(factors) != 2:
        return None
    return (_zeros(term), *factors), {}


def _zeros(value: Any) -> Any:
    return torch.zeros_like(value) if isinstance(value, Tensor) else type(value)(0)  # 0 times infinity is NaN


_AFFINE: dict[Any, Callable[..., _Arguments | None]] = {
    **dict.fromkeys([torch.conv1d, torch.conv2d, torch.conv3d, F.linear], _without_bias),
    F.batch_norm: _without_shift,
    **dict.fromkeys([torch.mul, Tensor.mul], _product),
    **dict.fromkeys([torch.div, Tensor.div], _quotient),
    **dict.fromkeys([torch.add, Tensor.add, torch.sub, Tensor.sub], _sum),
    **dict.fromkeys([torch.addmm, Tensor.addmm, torch.baddbmm, Tensor.baddbmm], _product_and_term),
}
"""Each returns the arguments of the linear part of an operator, of which that at ``at`` is then replaced; None where
there is none."""

_PLAIN = (Tensor, nn.Parameter)

_NORMALISING = (F.layer_norm, torch.layer_norm, F.group_norm, torch.group_norm)
"""Operators whose weights get zeros as tangents, for the same reason."""


def _affine(func: Any, args: Sequence[Any], keywords: dict[str, Any]) -> Tensor | None:
    """Returns what one of `_AFFINE` makes of ``args``, with a tangent; None where not one alone has one, or where more
    than its values counts: a class of tensors with operators of its own, or a gradient taken inside of the model."""
    values = [*args, *keywords.values()]
    tensors = [value for value in values if isinstance(value, Tensor)]
    if not all(type(value) in _PLAIN for value in tensors):
        return None
    tangents = [tangent_of(value) for value in values]
    moved = [number for number, tangent in enumerate(tangents) if tangent is not None]
    if len(moved) != 1 or (at := moved[0]) >= len(args):
        return None
    others = [value for value in tensors if value is not args[at] and type(value) is Tensor]
    if torch.is_grad_enabled() and any(value.requires_grad for value in others):
        return None
    linear = _AFFINE[func](at, *args, **keywords)
    if linear is None:
        return None
    with torch.no_grad():
        change = func(*_replaced_at(at, linear[0], tangents[at]), **linear[1])
    primal = func(*_replaced_at(at, args, forward_ad.unpack_dual(args[at]).primal), **keywords)
    with torch.enable_grad():  # else the model could not change it in place outside of a block of `no_grad`
        dual: Tensor = forward_ad.make_dual(primal, change)
    return dual


def _replaced_at(at: int, values: Sequence[Any], value: Any) -> list[Any]:
    return [*values[:at], value, *values[at + 1 :]]


def _with_zero_tangent(value: Any) -> Any:
    """Returns a tensor of floats that has no tangent with one of zeros; anything else as it is."""
    if not is_floating(value) or tangent_of(value) is not None:
        return value
    whole = value.contiguous()  # zeros cannot be written to an expanded tensor
    return forward_ad.make_dual(whole, torch.zeros_like(whole))


def _run(mode: _KeepTangents, func: Any, args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """Runs an operator of a forward-mode pass. Operators whose derivative PyTorch lacks, or computes slowly, run in
    another form."""
    if torch._C._functorch.peek_interpreter_stack() is not None:  # inside of a vmap, tensors are not what they seem
        return func(*args, **keywords)
    if func in _AFFINE and args and (dual := _affine(func, args, keywords)) is not None:
        return dual
    if func in _NORMALISING and args and tangent_of(args[0]) is not None:
        by_name = {name: _with_zero_tangent(value) for name, value in keywords.items()}
        return func(*map(_with_zero_tangent, args), **by_name)
    if func in _ATTENTION:
        return _attention(func, *args, **keywords)
    if func is F.multi_head_attention_forward:  # no mode sees what it calls
        with _attention_in(mode):
            return func(*args, **keywords)
    if func is torch.lstm and args and args[0].dtype is not torch.float64:
        return tuple(output.to(args[0].dtype) for output in func(*_in_double(args), **keywords))
    return func(*args, **keywords)


# Operators whose fused kernels have no ``jvp``.

_ATTENTION = (
    F.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,
)


def _attention(
    func: Any, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *more: Any, **keywords: Any
) -> Any:
    """Returns what ``func``, one of `_ATTENTION`, returns, with its tangent."""
    if all(tangent_of(each) is None for each in (query, key, value, attn_mask)):
        return func(query, key, value, attn_mask, *more, **keywords)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -torch.inf)
    unfused = torch.ops.aten._scaled_dot_product_attention_math.default
    return unfused(query, key, value, attn_mask, *more, **keywords)[0]


def _attention_in(mode: _KeepTangents) -> AbstractContextManager[None]:
    """Lets ``mode`` see the attention of this thread; a package may have replaced PyTorch's."""
    intact, thread = F.scaled_dot_product_attention, threading.get_ident()

    def attention(*args: Any, **keywords: Any) -> Any:
        with mode if threading.get_ident() == thread else nullcontext():
            return intact(*args, **keywords)

    return _replaced(F, "scaled_dot_product_attention", attention)


def _in_double(value: Any) -> Any:
    """Returns tensors of floats as float64, also inside of lists and tuples."""
    if isinstance(value, (list, tuple)):
        return [_in_double(each) for each in value]
    return value.double() if is_floating(value) else value


_DETACHING = (
    *(Tensor.detach, torch.detach, Tensor.detach_, Tensor.data.__get__),  # type: ignore[attr-defined]
    *(torch.ops.aten.detach, torch.ops.aten.detach.default),
)

_LEAVING = (
    *(Tensor.numpy, Tensor.tolist, Tensor.item, Tensor.__array__, Tensor.__float__, Tensor.__complex__),
    *(Tensor.__format__, torch.tensor, torch.asarray, Tensor.__dlpack__),
    *(torch.ops.aten.item, torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default),
)

_ENTERING = (Tensor.data.__set__, Tensor.new_tensor)  # type: ignore[attr-defined]

_ROUNDING = (
    torch.fake_quantize_per_tensor_affine,
    torch.fake_quantize_per_channel_affine,
    torch.fused_moving_avg_obs_fake_quant,
)
"""PyTorch's operators that round, whose gradient is 1 inside of the range and 0 outside, without a ``jvp``."""


class Rounding(TorchFunctionMode):
    """A mode that notes operators that round for training.

    Attributes:
        seen: whether one ran.
    """

    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        self.seen |= func in _ROUNDING
        return func(*args, **(kwargs or {}))


def _rounded(func: Any, args: Sequence[Any], keywords: dict[str, Any], tangent: Tensor) -> Tensor:
    """Returns what one of `_ROUNDING` makes of ``args``, with a tangent: its derivative is diagonal, so J v = Jᵀ v."""
    primal = forward_ad.unpack_dual(args[0]).primal
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(_kept, _kept):
        primal = primal if primal.requires_grad else primal.detach().requires_grad_()
        output = func(primal, *args[1:], **keywords)
    (change,) = torch.autograd.grad(output, primal, tangent, retain_graph=True)
    dual: Tensor = forward_ad.make_dual(output, change)
    return dual


def _kept(tensor: Tensor) -> Tensor:
    return tensor


@contextmanager
def _replaced(owner: type | ModuleType, name: str, attribute: Any) -> Iterator[None]:
    intact = owner.__dict__[name]
    setattr(owner, name, attribute)
    try:
        yield
    finally:
        setattr(owner, name, intact)


def _parameters_with_tangents() -> AbstractContextManager[None]:
    intact, thread = nn.Parameter.__new__, threading.get_ident()

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        kept = threading.get_ident() == thread and tangent_of(data) is not None
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


def _with_tangents(left: list[str], function: type[Function], apply: Apply, args: Sequence[Any]) -> Any:
    """Returns the outputs of a custom function with their tangents."""
    tangents = [tangent_of(value) for value in args]
    modes = _get_current_function_mode_stack()
    with _modes([mode for mode in modes if isinstance(mode, _KeepTangents)]):  # not all operators are the model's
        primals = [forward_ad.unpack_dual(value).primal if isinstance(value, Tensor) else value for value in args]
        with torch.no_grad():
            slopes = differences(partial(_again, modes, apply), primals, tangents)
        if slopes is None or not slopes.exact:
            with _modes(modes):
                return _unrolled(left, function, args)
        with _modes(modes):
            outputs = apply(*copied(primals))
        duals = [
            forward_ad.make_dual(output, change.to(output.dtype)) if is_floating(output) else output
            for output, change in zip(several(outputs), slopes.by_output)
        ]
    return type(outputs)(duals) if isinstance(outputs, (tuple, list)) else duals[0]


def _again(modes: Sequence[TorchFunctionMode], apply: Apply, *args: Any) -> Any:
    """Applies a custom function in the model's ``modes``, without an effect on the numbers of later calls."""
    with _modes(modes), repeating():
        return apply(*args)


class Slopes(NamedTuple):
    """The derivative of each output of a function along a direction; of an output of integers, the output itself.

    Attributes:
        by_output: the derivatives.
        exact: whether the function computes in float64.
        error: how much differences with steps of other lengths differ, as a part of the derivative.
    """

    by_output: Sequence[Any]
    exact: bool
    error: float


def differences(apply: Apply, primals: Sequence[Any], tangents: Sequence[Tensor | None]) -> Slopes | None:
    """Returns the derivatives along ``tangents`` by central differences in float64, or in the data types at hand, with
    longer steps, for a function that computes in float32. None if it refuses both."""
    with suppress(Exception):  # whatever a function of float32 raises for float64
        doubles = [value.to(_double(value)) if is_floating(value) else value for value in primals]
        along = [None if tangent is None else tangent.to(_double(tangent)) for tangent in tangents]
        exact = _slopes(apply, doubles, along, torch.float64)
        if exact.error <= _AGREEMENT and all(x.dtype == _double(x) for x in exact.by_output if is_floating(x)):
            return exact._replace(exact=True)
    with suppress(Exception):
        return _slopes(apply, primals, tangents, torch.float32)
    return None


def _double(like: Tensor) -> torch.dtype:
    return torch.promote_types(like.dtype, torch.float64)


def _slopes(apply: Apply, primals: Sequence[Any], tangents: Sequence[Tensor | None], dtype: torch.dtype) -> Slopes:
    """Returns central differences with steps for the roundings of ``dtype``.

    At their third root, relative to the values, errors from curvature and from rounding are about equal.
    """
    moved = [(value, tangent) for value, tangent in zip(primals, tangents) if tangent is not None]
    longest = max(float(tangent.abs().max()) for _, tangent in moved) or 1.0
    size = max(float(value.abs().mean()) for value, _ in moved) or 1.0
    length = torch.finfo(dtype).eps ** (1 / 3) * size / longest

    def slopes(step: float) -> list[Any]:
        ahead, behind = (
            several(apply(*copied(x if v is None else x + sign * step * v for x, v in zip(primals, tangents))))
            for sign in (1, -1)
        )
        return [(a - b) / (2 * step) if is_floating(a) else a for a, b in zip(ahead, behind)]

    one, other = slopes(length), slopes(length / 4)
    norms = [(float((a - b).norm()), float(a.norm() + b.norm()) / 2) for a, b in zip(one, other) if is_floating(a)]
    return Slopes(one, False, max((apart / (whole or 1.0) for apart, whole in norms), default=0.0))


def _unrolled(left: list[str], function: type[Function], args: Sequence[Any]) -> Any:
    """Runs the operators of a custom function's ``forward`` on dual tensors."""
    context = SimpleNamespace(
        save_for_backward=_ignore, save_for_forward=_ignore, mark_dirty=_ignore, mark_non_differentiable=_ignore,
        set_materialize_grads=_ignore, needs_input_grad=[False] * len(args),
    )  # fmt: skip
    separate, before = function.setup_context is not Function.setup_context, len(left)
    outputs = function.forward(*args) if separate else function.forward(context, *args)
    if len(left) > before or all(tangent_of(output) is None for output in several(outputs)):
        raise ForwardModeRefused(function.__name__)
    if separate:  # its operators have numbers too; what fails there is of no use for a tangent
        with suppress(Exception):
            function.setup_context(context, tuple(args), outputs)
        del left[before:]  # it is for the backward pass
    return outputs


def _ignore(*_: Any) -> None:
    """Replaces a method of the context of a custom function."""
