"""A wrong backward of a custom function is found out, and a right one not doubted, however the function is called."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

import cutaway as ca
from cutaway.contract.results import Cause, Verdict
from tests.support.checked_attributions import ask, noise, verdict

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
