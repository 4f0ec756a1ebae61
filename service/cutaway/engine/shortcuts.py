"""What Captum does the long way, done the short one: the same numbers, bit for bit.

Of Captum's time for four rows' integrated gradients of 64 steps, a third went into a root of the backward pass for each
row of each step, and a sixth into the rule's nodes, worked out anew twice a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from captum._utils.common import _run_forward
from captum._utils.gradient import compute_gradients
from captum.attr._utils import approximation_methods
from torch import Tensor

from cutaway.engine.quadrature import gauss_legendre


def shortened(explainer: Any) -> Any:
    """``explainer``, one of Captum's, with one root for all rows where it takes gradients at its inputs as most do."""
    if getattr(explainer, "gradient_func", None) is compute_gradients:
        explainer.gradient_func = gradients
    return explainer


def gradients(
    forward_fn: Callable[..., Any], inputs: Any, target_ind: Any = None, additional_forward_args: Any = None
) -> tuple[Tensor, ...]:
    """What `captum._utils.gradient.compute_gradients` returns, which gives the backward pass a root for each row: here
    all rows are one root, and their gradients a tensor of ones."""
    with torch.enable_grad():
        outputs = _run_forward(forward_fn, inputs, target_ind, additional_forward_args)
        if outputs[0].numel() != 1:
            raise AssertionError("a target is needed where an output has several elements")
        found: tuple[Tensor, ...] = torch.autograd.grad(outputs, inputs, torch.ones_like(outputs))
    return found


def _builders() -> tuple[Callable[[int], list[float]], Callable[[int], list[float]]]:
    """What `gauss_legendre_builders` of Captum returns, of nodes that are kept."""
    return (
        lambda n: (0.5 * gauss_legendre(n)[1]).tolist(),
        lambda n: (0.5 * (1 + gauss_legendre(n)[0])).tolist(),
    )


# For good, since what it returns is the same: a change for the time of a call would have to be kept apart by threads.
approximation_methods.gauss_legendre_builders = _builders
