"""The multipliers of DeepLIFT's Rescale rule: what a nonlinearity hands back of the multiplier that reaches it.

Shrikumar et al. 2017, arXiv:1704.02685. All tensors are float64, on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

EPSILON = 1e-10
"""Where what goes in differs by less, the derivative stands for the quotient."""

Again: TypeAlias = Callable[[Tensor], Tensor]
"""A nonlinearity, run again on another tensor."""


class Ends(NamedTuple):
    """What one nonlinearity took and returned, at the input and at the baseline."""

    taken: Tensor
    returned: Tensor
    taken_before: Tensor
    returned_before: Tensor

    @property
    def change_in(self) -> Tensor:
        """What went in at the input, less what went in at the baseline."""
        return self.taken - self.taken_before

    @property
    def change_out(self) -> Tensor:
        """The same of what came out."""
        return self.returned - self.returned_before

    @property
    def fit(self) -> bool:
        """Whether both ends have the same shapes."""
        return self.taken.shape == self.taken_before.shape and self.returned.shape == self.returned_before.shape


Rule: TypeAlias = Callable[[Ends, Tensor, Tensor, Again], Tensor]
"""From both ends, the multiplier that arrives and what the derivative makes of it: the multiplier that goes on."""


def rescale(ends: Ends, arriving: Tensor, derivative: Tensor, again: Again) -> Tensor:
    """``m * (y - y0) / (x - x0)``, element by element."""
    moved = ends.change_in.abs() >= EPSILON
    return torch.where(moved, arriving * ends.change_out / torch.where(moved, ends.change_in, 1.0), derivative)


def normalise(ends: Ends, arriving: Tensor, derivative: Tensor, again: Again) -> Tensor:
    """The same for a softmax, less its mean over the softmax' own axis: a number added to all classes does nothing."""
    multiplier = rescale(ends, arriving, derivative, again)
    return multiplier - multiplier.mean(dim=softmax_axis(ends.returned), keepdim=True)


def softmax_axis(returned: Tensor) -> int:
    """The axis along which probabilities sum to 1."""
    return min(range(returned.ndim), key=lambda axis: float((returned.sum(dim=axis) - 1).abs().max()))


def unpool(ends: Ends, arriving: Tensor, derivative: Tensor, again: Again) -> Tensor:
    """For a maximum over windows: what it rises by goes to where the maximum lies at the input, what it falls by to
    where it lay at the baseline, summed over windows, over ``x - x0``."""
    rise, fall = ends.change_out.clamp(min=0), ends.change_out.clamp(max=0)
    sent = _to_maxima(again, ends.taken, arriving * rise) + _to_maxima(again, ends.taken_before, arriving * fall)
    moved = ends.change_in.abs() >= EPSILON
    return torch.where(moved, sent / torch.where(moved, ends.change_in, 1.0), derivative)


def windows_share_a_maximum(ends: Ends, arriving: Tensor, again: Again) -> bool:
    """Whether two windows that hand something back have their maximum at the same element."""
    flows = arriving != 0
    rising = _to_maxima(again, ends.taken, (flows & (ends.change_out > 0)).double())
    falling = _to_maxima(again, ends.taken_before, (flows & (ends.change_out < 0)).double())
    return bool((rising > 1).any() or (falling > 1).any())


def _to_maxima(again: Again, taken: Tensor, cotangent: Tensor) -> Tensor:
    """``cotangent``, [windows...], at the elements of ``taken`` that are the windows' maxima, summed."""
    with torch.enable_grad():
        leaf = taken.detach().requires_grad_()
        (sent,) = torch.autograd.grad(again(leaf), leaf, cotangent)
    return sent


OF_MODULES: dict[type[nn.Module], Rule] = {
    **dict.fromkeys((nn.ReLU, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Softplus), rescale),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), unpool),
    nn.Softmax: normalise,
}
"""The kinds that Captum overrides, by their exact class."""

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

OF_FUNCTIONS: dict[str, Rule] = {
    **{f"{name}{in_place}": rescale for name in _ELEMENTWISE for in_place in ("", "_")},
    **dict.fromkeys(("softmax", "_softmax", "softmin"), normalise),
    **dict.fromkeys(_POOLS, unpool),
}
"""Operators that Captum differentiates as they are, by name."""
