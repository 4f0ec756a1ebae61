"""A place in the graph where something else goes back than the derivative of what went forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _Passage(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back, ctx.dtype = back, tensor.dtype
        return tensor.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, arrived: Tensor) -> tuple[Tensor, None]:
        return ctx.back(arrived).to(ctx.dtype), None


def passage(tensor: Tensor, back: Callable[[Tensor], Tensor]) -> Tensor:
    """A copy of ``tensor``; what arrives at it on the way back goes on as ``back`` of it, rounded to its data type."""
    through: Tensor = _Passage.apply(tensor, back)  # type: ignore[no-untyped-call]
    return through
