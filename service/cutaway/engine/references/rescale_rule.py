"""DeepLIFT's Rescale rule: the multiplier that a nonlinearity passes back for the multiplier that arrives at it.

Shrikumar et al. 2017, arXiv:1704.02685, sections 3.5.2 and 3.6. All tensors are on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float64
from torch import Tensor, nn

EPSILON = 1e-10
"""If the input differs from the baseline's by less, the derivative replaces the quotient."""

Input: TypeAlias = Float64[Tensor, "*input"]
Output: TypeAlias = Float64[Tensor, "*output"]

Function: TypeAlias = Callable[[Tensor], Tensor]
"""A nonlinearity as a function of one tensor."""


class Activations(NamedTuple):
    """What one nonlinearity takes and returns, at the input and at the baseline."""

    input: Input
    output: Output
    baseline_input: Input
    baseline_output: Output

    @property
    def delta_in(self) -> Input:
        """The difference of the inputs, ``x - x0``."""
        return self.input - self.baseline_input

    @property
    def delta_out(self) -> Output:
        """The difference of the outputs, ``y - y0``."""
        return self.output - self.baseline_output

    @property
    def same_shapes(self) -> bool:
        """Whether the shapes at the input are those at the baseline."""
        return self.input.shape == self.baseline_input.shape and self.output.shape == self.baseline_output.shape


Rule: TypeAlias = Callable[[Activations, Tensor, Tensor, Function], Tensor]
"""Returns the multiplier that is passed back to the input.

Arguments: the activations, the multiplier that arrives at the output, that multiplier times the derivative, and the
nonlinearity.
"""


def rescale(activations: Activations, multiplier: Output, derivative: Input, function: Function) -> Input:
    """Returns ``m * (y - y0) / (x - x0)``, element by element."""
    delta = activations.delta_in
    moved = delta.abs() >= EPSILON
    return torch.where(moved, multiplier * activations.delta_out / torch.where(moved, delta, 1.0), derivative)


def rescale_softmax(activations: Activations, multiplier: Output, derivative: Input, function: Function) -> Input:
    """Returns the same minus its mean over the softmax axis, because adding a number to all logits changes nothing."""
    rescaled = rescale(activations, multiplier, derivative, function)
    return rescaled - rescaled.mean(dim=softmax_axis(activations.output), keepdim=True)


def softmax_axis(output: Output) -> int:
    """Returns the axis along which probabilities sum to 1."""
    return min(range(output.ndim), key=lambda axis: float((output.sum(dim=axis) - 1).abs().max()))


def rescale_max_pool(activations: Activations, multiplier: Output, derivative: Input, function: Function) -> Input:
    """Returns the multiplier for a maximum over windows.

    ``m * max(0, y - y0)`` goes to the position of the maximum at the input, and ``m * min(0, y - y0)`` to that at the
    baseline; their sum over windows is divided by ``x - x0``.
    """
    rise, fall = activations.delta_out.clamp(min=0), activations.delta_out.clamp(max=0)
    sent = _to_maxima(function, activations.input, multiplier * rise)
    sent = sent + _to_maxima(function, activations.baseline_input, multiplier * fall)
    delta = activations.delta_in
    moved = delta.abs() >= EPSILON
    return torch.where(moved, sent / torch.where(moved, delta, 1.0), derivative)


def windows_share_maximum(activations: Activations, multiplier: Output, function: Function) -> bool:
    """Whether two windows that pass a multiplier back have their maximum at the same element."""
    passes = multiplier != 0
    rising = _to_maxima(function, activations.input, (passes & (activations.delta_out > 0)).double())
    falling = _to_maxima(function, activations.baseline_input, (passes & (activations.delta_out < 0)).double())
    return bool((rising > 1).any() or (falling > 1).any())


def _to_maxima(function: Function, tensor: Input, cotangent: Output) -> Input:
    """Returns the sum of the windows' ``cotangent`` at the elements of ``tensor`` that are their maxima."""
    with torch.enable_grad():
        leaf = tensor.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(function(leaf), leaf, cotangent)
    return gradient


MODULE_RULES: dict[type[nn.Module], Rule] = {
    **dict.fromkeys((nn.ReLU, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Softplus), rescale),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), rescale_max_pool),
    nn.Softmax: rescale_softmax,
}
"""The modules that Captum overrides, by their exact class."""

_ELEMENTWISE = (
    *("relu", "relu6", "elu", "leaky_relu", "rrelu", "prelu", "selu", "celu", "gelu", "silu", "mish", "threshold"),
    *("sigmoid", "tanh", "softplus", "softsign", "log_sigmoid", "logsigmoid", "tanhshrink", "hardshrink", "_threshold"),
    *("softshrink", "hardtanh", "hardsigmoid", "hardswish", "clamp", "clamp_min", "clamp_max", "clip", "erf", "abs"),
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "square", "pow", "reciprocal"),
    *("sin", "cos", "tan", "sinh", "cosh", "atan", "arctan", "asinh", "arcsinh"),
)

_POOLS = (
    *(f"{kind}max_pool{axes}d" for kind in ("", "adaptive_") for axes in (1, 2, 3)),
    *(f"{kind}max_pool{axes}d_with_indices" for kind in ("", "adaptive_") for axes in (1, 2, 3)),
)

OPERATOR_RULES: dict[str, Rule] = {
    **{f"{name}{in_place}": rescale for name in _ELEMENTWISE for in_place in ("", "_")},
    **dict.fromkeys(("softmax", "_softmax", "softmin"), rescale_softmax),
    **dict.fromkeys(_POOLS, rescale_max_pool),
}
"""Operators by name; Captum differentiates them as they are."""
