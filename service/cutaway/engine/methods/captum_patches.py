"""Faster replacements for two functions of Captum, which return the same values bit for bit.

Measured on the integrated gradients of four rows with 64 steps: Captum spends a third of its time in a backward pass
that has one root for each row of each step, and a sixth in the nodes of the quadrature rule, computed anew twice a
call. The replacements act inside `quicker_captum` blocks only, and only on the releases for which tests compare the
values; every other release runs as it is.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import captum
import torch
from torch import Tensor

from cutaway.engine.passes.convergence_delta import gauss_legendre
from cutaway.engine.runtime.process_setting import ProcessSetting

PROVEN_VERSIONS = ("0.9.0",)


def quicker_captum() -> AbstractContextManager[None]:
    """Returns a context in which Captum takes the nodes and weights of the quadrature rule from a cache."""
    return _CACHED_NODES.applied() if _is_proven() else nullcontext()


def with_single_root(explainer: Any) -> Any:
    """Returns ``explainer``, a Captum object, with `gradients` in place of Captum's default gradient function, if it
    has that one: for neurons, Captum sets others."""
    if _is_proven() and getattr(explainer, "gradient_func", None) is _private("_utils.gradient").compute_gradients:
        explainer.gradient_func = gradients
    return explainer


def gradients(
    forward_fn: Callable[..., Any], inputs: Any, target_ind: Any = None, additional_forward_args: Any = None
) -> tuple[Tensor, ...]:
    """Returns what `captum._utils.gradient.compute_gradients` returns, from a backward pass with one root.

    Captum's has a root for each row. Here the outputs of all rows are one root, with a gradient of ones.
    """
    with torch.enable_grad():
        outputs = _private("_utils.common")._run_forward(forward_fn, inputs, target_ind, additional_forward_args)
        if outputs[0].numel() != 1:
            raise AssertionError("a target is needed where an output has several elements")
        found: tuple[Tensor, ...] = torch.autograd.grad(outputs, inputs, torch.ones_like(outputs))
    return found


def _is_proven() -> bool:
    return captum.__version__ in PROVEN_VERSIONS


def _private(module: str) -> Any:
    """Imports a private module of Captum, which other releases need not have."""
    return importlib.import_module(f"captum.{module}")


def _builders() -> tuple[Callable[[int], list[float]], Callable[[int], list[float]]]:
    """Replaces Captum's `gauss_legendre_builders`: functions of the number of points that return weights and nodes."""
    return (
        lambda n: (0.5 * gauss_legendre(n)[1]).tolist(),
        lambda n: (0.5 * (1 + gauss_legendre(n)[0])).tolist(),
    )


_CACHED_NODES: ProcessSetting[Any] = ProcessSetting(
    lambda: _private("attr._utils.approximation_methods").gauss_legendre_builders,
    lambda builders: setattr(_private("attr._utils.approximation_methods"), "gauss_legendre_builders", builders),
    _builders,
)
"""Captum reads the function from its module, so the change is the process's. A thread outside the blocks computes the
same values with it."""
