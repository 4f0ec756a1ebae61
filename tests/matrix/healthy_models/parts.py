"""Chains and wirings of modules, and modules that several models have."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.checked_attributions import Wired

Make = Callable[[], nn.Module]


def chain(**parts: Make) -> Make:
    """Makes modules that run one after another."""
    return lambda: nn.Sequential(OrderedDict((name, make()) for name, make in parts.items()))


def linear(inward: int, outward: int) -> Make:
    """A linear layer."""
    return lambda: nn.Linear(inward, outward)


def joined(wiring: Callable[..., Any], **parts: Callable[[], Any]) -> Make:
    """Makes modules that a function wires."""
    return lambda: Wired(wiring, **{name: make() for name, make in parts.items()})


def perceptron(inward: int, classes: int, activation: Make, norm: Callable[[int], nn.Module] | None = None) -> Make:
    """Two hidden layers, with or without a norm behind each."""

    def make() -> nn.Module:
        parts: dict[str, nn.Module] = {}
        for number, name, before, width in ((1, "first", inward, 16), (2, "second", 16, 12)):
            parts[name] = nn.Linear(before, width)
            if norm is not None:
                parts[f"norm{number}"] = norm(width)
            parts[f"act{number}"] = activation()
        return nn.Sequential(OrderedDict(parts | {"head": nn.Linear(12, classes)}))

    return make


class Permuted(nn.Module):
    """Its input with the axes in another order."""

    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, *self.order)


class Sum(nn.Module):
    """The sum of a branch and its input."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class Swish(torch.autograd.Function):
    """x * sigmoid(x), with a right backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate = x.sigmoid()
        return gradients[0] * (gate + x * gate * (1 - gate))


class Cube(torch.autograd.Function):
    """The cube of its input, in the newer style: with ``setup_context``."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 3 * ctx.saved_tensors[0] ** 2
