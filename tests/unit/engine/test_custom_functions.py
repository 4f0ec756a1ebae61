"""A wrong backward of a custom function is found out, and a right one not doubted, however the function is called."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function, forward_ad
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

import cutaway as ca
from cutaway.contract.results import Cause, Verdict
from cutaway.engine.checks.function_calls import calling_functions
from tests.support.checked_attributions import ask, noise, verdict
from tests.support.waiting import PATIENCE_S

Gated = Callable[[Tensor, Tensor], Tensor]


def gate(first: float, second: float) -> type[Function]:
    """Returns the function ``tanh(x) * y``, its gradients times ``first`` and ``second``."""

    class Gate(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return x.tanh() * y

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
            x, y = ctx.saved_tensors
            return first * gradients[0] * y * (1 - x.tanh() ** 2), second * gradients[0] * x.tanh()

    return Gate


def with_setup(first: float, second: float) -> type[Function]:
    """Returns `gate` in the form that `torch.func` needs."""
    plain: Any = gate(first, second)

    class Gate(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor, y: Tensor) -> Tensor:
            return x.tanh() * y

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.save_for_backward(*inputs)

        backward = staticmethod(plain.backward)

    return Gate


def once(first: float, second: float) -> Gated:
    """Returns `gate` with a backward that itself has no gradient."""
    plain: Any = gate(first, second)
    plain.backward = staticmethod(once_differentiable(plain.backward))
    return applied(plain)


def applied(function: Any) -> Gated:
    """Returns ``function.apply``, as PyTorch's documentation names it: once, before any call."""
    bound: Gated = function.apply
    return bound


def late(function: Any) -> Gated:
    """Returns a call that looks ``apply`` up each time."""
    return lambda x, y: function.apply(x, y)


def registered(first: float, second: float) -> Gated:
    """Returns an operator of `torch.library` with an autograd formula."""
    plain: Any = gate(first, second)
    name = f"cutaway_tests::gate_{str(first).replace('.', '_')}_{str(second).replace('.', '_').replace('-', 'm')}"

    @torch.library.custom_op(name, mutates_args=())
    def op(x: Tensor, y: Tensor) -> Tensor:
        return x.tanh() * y

    op.register_autograd(plain.backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
    return op


Forward = Callable[[Any, Tensor, Tensor], Any]


def computed(forward: Forward, first: float, second: float) -> Any:
    """Returns `gate`, computed by ``forward``; further arguments and outputs have no gradient."""
    plain: Any = gate(first, second)

    class Gate(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor, *more: Any) -> Any:
            ctx.save_for_backward(x.clone(), y.clone())
            ctx.further = [None] * len(more)
            return forward(ctx, x, y)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return *plain.backward(ctx, *gradients), *ctx.further

    return Gate.apply


def _beside_a_mask(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    mask = x > 0
    ctx.mark_non_differentiable(mask)
    return x.tanh() * y, mask


def _in_place(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
    ctx.mark_dirty(x)
    return x.tanh_().mul_(y)


def _in_numpy(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
    return torch.from_numpy(np.tanh(x.detach().float().numpy())).to(x.dtype) * y


def with_mask(*factors: float) -> Gated:
    """Returns the first of two outputs."""
    op = computed(_beside_a_mask, *factors)
    return lambda x, y: op(x, y)[0]


def with_numbers(*factors: float) -> Gated:
    """Passes a number and a text behind the tensors."""
    op = computed(lambda _, x, y: x.tanh() * y, *factors)
    return lambda x, y: op(x, y, 3, "a")


def in_place(*factors: float) -> Gated:
    """Returns an argument after its change, and not what the function returned."""
    op = computed(_in_place, *factors)

    def call(x: Tensor, y: Tensor) -> Tensor:
        changed = x * 1
        op(changed, y)
        return changed

    return call


WAYS: dict[str, Callable[[float, float], Gated]] = {
    "looked up at each call": lambda *factors: late(gate(*factors)),
    "bound": lambda *factors: applied(gate(*factors)),
    "bound, in a list": lambda *factors: [applied(gate(*factors))][0],
    "bound, in a partial": lambda *factors: partial(applied(gate(*factors))),
    "bound, checkpointed": lambda *factors: partial(checkpoint, applied(gate(*factors)), use_reentrant=False),
    "once differentiable": once,
    "bound, with setup_context": lambda *factors: applied(with_setup(*factors)),
    "bound, in vmap": lambda *factors: torch.func.vmap(applied(with_setup(*factors))),
    "an operator of torch.library": registered,
    "with a mask as second output": with_mask,
    "with arguments that are no tensors": with_numbers,
    "in place": lambda *factors: lambda x, y: computed(_in_place, *factors)(x * 1, y),
    "in place, the argument read": in_place,
    "in part by NumPy, in float32": lambda *factors: computed(_in_numpy, *factors),
}
FACTORS = {"right": (1.0, 1.0), "first too large": (1.5, 1.0), "second of the other sign": (1.0, -1.0)}


class Net(nn.Module):
    """Two linear maps of the input, joined by a function that is wired at construction."""

    def __init__(self, gated: Gated) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.a, self.b, self.head = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 3)
        self.gated = gated

    def forward(self, x: Tensor) -> Tensor:
        """Returns three scores."""
        y: Tensor = self.head(self.gated(self.a(x), self.b(x)))
        return y


@pytest.mark.parametrize("factors", list(FACTORS))
@pytest.mark.parametrize("way", list(WAYS))
def test_a_custom_function_is_tested_however_it_is_called(way: str, factors: str) -> None:
    """The verdict is AGREES only where the backward pass is right, and names the fault elsewhere."""
    net = Net(WAYS[way](*FACTORS[factors])).eval()
    result = ask(net, {"x": noise(3, 8)}, ca.Saliency(), target=ca.ClassIndex((0,)))
    (check,) = result.attributions[0].checks
    if factors == "right":
        assert verdict(result.attributions[0]) is Verdict.AGREES, check
    else:
        assert check.verdict is not Verdict.AGREES
        assert check.cause is Cause.WRONG_BACKWARD, check


def defined(
    forward: Callable[..., Any], backward: Callable[..., Any], **further: Callable[..., Any]
) -> Callable[..., Any]:
    """Returns ``apply`` of a function with this ``forward`` and ``backward``, which get the context first."""
    methods = {"forward": forward, "backward": backward, **further}
    return applied(type("Defined", (Function,), {name: staticmethod(method) for name, method in methods.items()}))


def saving(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a ``forward`` that saves the tensors it gets."""

    def forward(ctx: Any, *tensors: Tensor) -> Any:
        ctx.save_for_backward(*tensors)
        return compute(*tensors)

    return forward


def gated_by(compute: Callable[[Tensor, Tensor], Any], factor: float, **further: Callable[..., Any]) -> Gated:
    """Returns a function whose ``compute`` is ``tanh(x) * y``; the gradient of x is ``factor`` times too large."""
    return defined(saving(compute), lambda ctx, g, *_: _product_rule(ctx.saved_tensors, g, factor), **further)


def _product_rule(saved: tuple[Tensor, Tensor], g: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    x, y = saved
    return factor * g * y * (1 - x.tanh() ** 2), g * x.tanh()


def by_numpy(x: Tensor, y: Tensor) -> Tensor:
    return torch.from_numpy(np.tanh(x.detach().numpy())) * y


def in_float32(x: Tensor, y: Tensor) -> Tensor:
    return torch.from_numpy(np.tanh(x.detach().float().numpy())).to(x.dtype) * y


def only_float32(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype != torch.float32:
        raise TypeError(x.dtype)
    return by_numpy(x, y)


def changing_in_place(factor: float) -> Gated:
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        ctx.save_for_backward(x.tanh_())
        return x

    function = defined(forward, lambda ctx, g: factor * g * (1 - ctx.saved_tensors[0] ** 2))

    def gated(x: Tensor, y: Tensor) -> Tensor:
        changed = x.clone()
        function(changed)
        return changed * y

    return gated


def of_its_output(factor: float) -> Gated:
    def forward(ctx: Any, x: Tensor) -> Tensor:
        output = x.exp()
        ctx.save_for_backward(output)
        return output

    function = defined(forward, lambda ctx, g: factor * g * ctx.saved_tensors[0])
    return lambda x, y: function(x) * y


def with_settings(factor: float) -> Gated:
    def forward(ctx: Any, x: Tensor, power: int, settings: dict[str, float], _: None) -> Any:
        ctx.save_for_backward(x)
        return x**power * settings["scale"]

    def backward(ctx: Any, g: Tensor) -> Any:
        return factor * 6 * g * ctx.saved_tensors[0] ** 2, None, None, None

    function = defined(forward, backward)
    return lambda x, y: function(x, 3, {"scale": 2.0}, None) * y


def of_several_outputs(factor: float) -> Gated:
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        ctx.save_for_backward(x, y)
        places, positive = x.argmax(-1), x > 0
        ctx.mark_non_differentiable(places, positive)
        return x * y, places, positive, x.sin()

    def backward(ctx: Any, g: Tensor, _: Any, __: Any, of_sine: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return g * y + factor * of_sine * x.cos(), g * x

    function = defined(forward, backward)

    def gated(x: Tensor, y: Tensor) -> Tensor:
        product, _, positive, sine = function(x, y)
        return product + sine * 2 + positive

    return gated


def inside_another(factor: float) -> Gated:
    inner: Any = gate(factor, 1.0)

    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        with torch.enable_grad():
            ctx.inputs = [tensor.detach().requires_grad_() for tensor in tensors]
            ctx.output = inner.apply(*ctx.inputs)
        return ctx.output.detach()

    return defined(forward, lambda ctx, g: torch.autograd.grad(ctx.output, ctx.inputs, g, retain_graph=True))


def with_an_unused_output(factor: float) -> Gated:
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return x.tanh() * y, x * 2

    def backward(ctx: Any, g: Tensor, unused: None) -> Any:
        assert unused is None
        return _product_rule(ctx.saved_tensors, g, factor)

    function = defined(forward, backward)
    return lambda x, y: function(x, y)[0]


def far_from_one(factor: float) -> Gated:
    function = defined(
        saving(lambda x: (x * 1e-4).tanh() * 1e4),
        lambda ctx, g: factor * g * (1 - (ctx.saved_tensors[0] * 1e-4).tanh() ** 2),
    )
    return lambda x, y: function(x * 1e4) * 1e-4 * y


def with_jvp(factor: float) -> Gated:
    """A ``jvp`` that repeats the fault of ``backward``."""

    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_forward(x, y)
        ctx.save_for_backward(x, y)
        return in_float32(x, y)

    def jvp(ctx: Any, along_x: Tensor, along_y: Tensor) -> Tensor:
        x, y = ctx.saved_tensors
        return factor * along_x * y * (1 - x.tanh() ** 2) + along_y * x.tanh()

    return defined(forward, lambda ctx, g: _product_rule(ctx.saved_tensors, g, factor), jvp=jvp)


def of_complex_numbers(factor: float) -> Gated:
    """``z * |z|^2`` of ``z = x + i y``: its gradient is ``2 |z|^2 g + z^2 conj(g)``."""

    def backward(ctx: Any, g: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        return factor * (2 * z.abs() ** 2 * g + z**2 * g.conj())

    function = defined(saving(lambda z: z * z.abs() ** 2), backward)

    def gated(x: Tensor, y: Tensor) -> Tensor:
        z = function(torch.complex(x, y))
        return z.real + 2 * z.imag

    return gated


def with_an_empty_argument(factor: float) -> Gated:
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y, empty = ctx.saved_tensors
        return *_product_rule((x, y), g, factor), torch.zeros_like(empty)

    function = defined(saving(lambda x, y, _: by_numpy(x, y)), backward)
    return lambda x, y: function(x, y, x[:, :0])


def with_a_wrong_gradient_of_a_parameter(factor: float) -> Gated:
    """Also of a parameter, to which the attribution's gradient does not go back."""
    weight = nn.Parameter(torch.full((16,), 2.0))

    def backward(ctx: Any, g: Tensor) -> Any:
        x, y, w = ctx.saved_tensors
        return *(w * gradient for gradient in _product_rule((x, y), g, factor)), torch.ones_like(w)

    function = defined(saving(lambda x, y, w: by_numpy(x, y) * w.detach()), backward)
    return lambda x, y: function(x, y, weight)


KINDS: dict[str, Callable[[float], Gated]] = {
    "in NumPy": partial(gated_by, by_numpy),
    "in NumPy, checkpointed": lambda factor: partial(checkpoint, gated_by(by_numpy, factor), use_reentrant=False),
    "in NumPy's float32": partial(gated_by, in_float32),
    "of float32 alone": partial(gated_by, only_float32),
    "in place": changing_in_place,
    "saves its output": of_its_output,
    "with arguments that are no tensors": with_settings,
    "of several outputs, two of them no floats": of_several_outputs,
    "a function inside a function": inside_another,
    "with an output that is not used": with_an_unused_output,
    "far from one": far_from_one,
    "with an empty argument": with_an_empty_argument,
    "of a parameter": with_a_wrong_gradient_of_a_parameter,
    "of complex numbers": of_complex_numbers,
    "with a jvp of the same fault": with_jvp,
    "in vmap": lambda factor: torch.func.vmap(applied(with_setup(factor, 1.0))),
    "an operator of torch.library": lambda factor: registered(factor, 1.0),
}


def refusing(gated: Gated) -> Gated:
    """Returns ``gated`` beside an operator without forward-mode derivative, which ends the adjoint test."""
    return lambda x, y: gated(x, y) + 0.01 * torch.cdist(x[:, None], torch.ones_like(x)[:, None])[:, 0]


@pytest.mark.parametrize("factor", [1.0, 1.05])
@pytest.mark.parametrize("beside", [lambda gated: gated, refusing], ids=["alone", "beside a refused operator"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_custom_function_is_tested_whatever_it_does(
    kind: str, beside: Callable[[Gated], Gated], factor: float
) -> None:
    """A gradient that is 5 % too large is found, and a right one agrees."""
    net = Net(beside(KINDS[kind](factor))).eval()
    result = ask(net, {"x": noise(3, 8)}, ca.Saliency(), target=ca.ClassIndex((0,)))
    (check,) = result.attributions[0].checks
    expected = (Verdict.AGREES, None) if factor == 1 else (Verdict.INCONCLUSIVE, Cause.WRONG_BACKWARD)
    assert (check.verdict, check.cause) == expected, check.reason


def test_a_function_that_no_test_reaches_is_named() -> None:
    """It runs inside its model alone, beside an operator that ends the adjoint test: no AGREES in silence."""
    running: list[bool] = []

    def compute(x: Tensor, y: Tensor) -> Tensor:
        if not running:
            raise RuntimeError("not inside the model")
        return x.tanh() * y

    function = gated_by(compute, 1.0)

    def gated(x: Tensor, y: Tensor) -> Tensor:
        running.append(True)
        try:
            return function(x, y)
        finally:
            running.clear()

    result = ask(Net(refusing(gated)).eval(), {"x": noise(3, 8)}, ca.Saliency(), target=ca.ClassIndex((0,)))
    (check,) = result.attributions[0].checks
    assert (check.verdict, check.cause) == (Verdict.INCONCLUSIVE, Cause.CHECK_FAILED)
    assert "Defined" in check.reason


def test_a_function_whose_own_roundings_hide_its_gradient_is_named() -> None:
    """Two large outputs of float32, which the model subtracts, hide a gradient that is 5 % too large."""

    def compute(x: Tensor) -> Any:
        large = torch.from_numpy(1e6 * x.detach().float().numpy()).to(x.dtype)
        return x.tanh(), large, large.clone()

    def backward(ctx: Any, g: Tensor, one: Tensor, other: Tensor) -> Tensor:
        return 1.05 * g * (1 - ctx.saved_tensors[0].tanh() ** 2) + 1e6 * (one + other)

    function = defined(saving(compute), backward)

    def gated(x: Tensor, y: Tensor) -> Tensor:
        small, one, other = function(x)
        return (small + (one - other)) * y

    result = ask(Net(refusing(gated)).eval(), {"x": noise(3, 8)}, ca.Saliency(), target=ca.ClassIndex((0,)))
    (check,) = result.attributions[0].checks
    assert (check.verdict, check.cause) == (Verdict.INCONCLUSIVE, Cause.CHECK_FAILED), check.reason


def test_a_function_before_the_layer_raises_no_doubt_there() -> None:
    """The gradient at the head does not go back through it; that at the first layer does."""
    net = Net(refusing(gated_by(by_numpy, 1.5))).eval()
    asked = [ca.LayerGradientXActivation(layer=layer) for layer in ("head", "a")]
    result = ask(net, {"x": noise(3, 8)}, *asked, target=ca.ClassIndex((0,)))
    behind, before = (attribution.checks[0] for attribution in result.attributions)
    assert behind.verdict is Verdict.AGREES, behind.reason
    assert (before.verdict, before.cause) == (Verdict.INCONCLUSIVE, Cause.WRONG_BACKWARD)


def test_a_function_that_refuses_its_arguments_hides_no_other() -> None:
    """A test that a function refuses before its call begins leaves the next call to be seen."""
    seen: list[str] = []

    class First(Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            pass

    class Second(First):
        pass

    def note(function: type[Function], apply: Callable[..., Any], args: Sequence[Any]) -> Any:
        seen.append(function.__name__)
        outputs = apply(*args)
        with suppress(TypeError):
            apply(*args, 1)
        return outputs

    with calling_functions(note):
        for function in (First, Second):
            function.apply(torch.ones(2))
    assert seen == ["First", "Second"]


def test_forward_mode_of_another_thread_keeps_its_own_tangents() -> None:
    """While a test of one model runs, others differentiate the same function in theirs."""
    own, others = threading.get_ident(), list[Any]()

    class Doubled(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            if threading.get_ident() == own:
                thread = threading.Thread(target=elsewhere)
                thread.start()
                thread.join(PATIENCE_S)
            return x * 2

        @staticmethod
        def jvp(ctx: Any, tangent: Tensor) -> Tensor:
            return tangent * 2

    def elsewhere() -> None:
        others.append(forward_ad.unpack_dual(Doubled.apply(dual)).tangent.tolist())

    def nine(function: type[Function], apply: Callable[..., Any], args: Sequence[Any]) -> Any:
        outputs = apply(*(forward_ad.unpack_dual(each).primal for each in args))
        return forward_ad.make_dual(outputs, torch.full((2,), 9.0))

    with forward_ad.dual_level(), calling_functions(nine, has_tangents=True):
        dual = forward_ad.make_dual(torch.ones(2), torch.ones(2))
        assert forward_ad.unpack_dual(Doubled.apply(dual)).tangent.tolist() == [9, 9]
    assert others == [[2, 2], [2, 2]]


def test_a_functions_forward_runs_without_a_graph_while_it_is_noted() -> None:
    """As PyTorch runs it: what works in place there would be refused in a graph."""

    class InPlace(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            assert not torch.is_grad_enabled()
            return x.clone().mul_(2)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 2

    with calling_functions(lambda function, apply, args: apply(*args)):
        x = torch.ones(2, requires_grad=True)
        InPlace.apply(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2]
