"""Replacements for functions of Captum: two are faster, with the same values bit for bit; two have the right values.

In integrated gradients of four rows with 64 steps, Captum spends a third of its time in a backward pass that has one
root for each row of each step. It spends a sixth in the nodes of the quadrature rule, computed anew twice a call. The
replacements act inside `quicker_captum` blocks only. The installed Captum decides, not its version: a function is
replaced only if it returns, for a small example, the same bits as ours. Every other one runs as it is.

DeepLIFT's rule for a softmax is replaced only if it returns other values than the Rescale rule.

KernelSHAP and LIME fit each row by itself, and the fit of a row that is not finite raised the error of all rows.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import lru_cache, partial
from inspect import signature
from operator import setitem
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from cutaway.engine.model.session import ProcessSetting
from cutaway.engine.passes.reference_inputs import gauss_legendre

_NODES = "attr._utils.approximation_methods", "gauss_legendre_builders"


def quicker_captum() -> AbstractContextManager[None]:
    """Returns a context in which Captum takes the nodes and weights of the quadrature rule from a cache."""
    return _CACHED_NODES.applied() if _has_our_nodes(_private(*_NODES)) else nullcontext()


def with_single_root(explainer: Any) -> Any:
    """Returns ``explainer``, a Captum object, with `gradients` in place of Captum's default gradient function, if it
    has that one: for neurons, Captum sets others."""
    function = getattr(explainer, "gradient_func", None)
    if function is _private("_utils.gradient", "compute_gradients") and _has_our_gradients(function):
        explainer.gradient_func = gradients
    return explainer


def gradients(
    forward_fn: Callable[..., Any], inputs: Any, target_ind: Any = None, additional_forward_args: Any = None
) -> tuple[Tensor, ...]:
    """Returns what `captum._utils.gradient.compute_gradients` returns, from a backward pass with one root.

    Captum's has a root for each row. Here the outputs of all rows are one root, with a gradient of ones.
    """
    with torch.enable_grad():
        outputs = _private("_utils.common", "_run_forward")(forward_fn, inputs, target_ind, additional_forward_args)
        if outputs[0].numel() != 1:
            raise AssertionError("a target is needed where an output has several elements")
        computed: tuple[Tensor, ...] = torch.autograd.grad(outputs, inputs, torch.ones_like(outputs))
    return computed


def with_rows_apart(explainer: Any) -> Any:
    """Returns ``explainer``, a Captum object; if it fits linear models, those of rows that are not finite are NaN."""
    if (model := getattr(explainer, "interpretable_model", None)) is not None:
        explainer.interpretable_model = _FitOfAnyRow(model)
    return explainer


class _FitOfAnyRow:
    """A surrogate of Captum that takes targets and weights which are not finite: then its coefficients are NaN.

    It fits zeros in their place, so that the rows behind draw the numbers that they draw in other company.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._is_finite = True

    def fit(self, data: DataLoader[Any]) -> None:
        """Fits the model to ``data``: masks, targets and weights. The loader would stack them row by row."""
        dataset: Any = data.dataset
        masks, targets, weights = dataset.tensors
        self._is_finite = bool(targets.isfinite().all() and weights.isfinite().all())
        if not self._is_finite:
            targets, weights = torch.zeros_like(targets), torch.ones_like(weights)
        iter(data)  # draws a number, as Captum's loop over the batches does
        self._model.fit([(masks, targets, weights)])

    def representation(self) -> Tensor:
        """Returns the coefficients."""
        coefficients: Tensor = self._model.representation()
        return coefficients if self._is_finite else torch.full_like(coefficients, torch.nan)


@lru_cache
def _has_our_gradients(function: Any) -> bool:
    """Returns whether ``function`` takes the arguments of `gradients`, and returns the same bits."""
    inputs = (torch.linspace(-1, 1, 6, dtype=torch.float64, device="cpu").reshape(3, 2).requires_grad_(),)
    example = (lambda x, scale: (x * scale).tanh().cumsum(1), inputs, torch.tensor([0, 1, 1], device="cpu"), 3.0)
    with suppress(TypeError, ValueError):
        same_arguments = list(signature(function).parameters) == list(signature(gradients).parameters)
        return same_arguments and torch.equal(function(*example)[0], gradients(*example)[0])
    return False


@lru_cache
def _has_our_nodes(builders: Any) -> bool:
    """Returns whether ``builders`` gives the nodes and weights of `_builders`, bit for bit."""
    with suppress(TypeError, ValueError):
        pairs = list(zip(builders(), _builders(), strict=True))
        return all(theirs(n) == ours(n) for theirs, ours in pairs for n in (1, 5, 64))
    return False


def rescaled_softmax() -> AbstractContextManager[None]:
    """Returns a context in which Captum's DeepLIFT passes multipliers through a softmax by the Rescale rule.

    Captum up to 0.9 subtracts their mean over all rows and axes, which Shrikumar et al. 2017, arXiv:1704.02685, do not.
    """
    return _RESCALED_SOFTMAX.applied() if _centres_multipliers(_rules()[nn.Softmax]) else nullcontext()


@lru_cache
def _centres_multipliers(rule: Any) -> bool:
    """Returns whether ``rule`` differs from the Rescale rule for a small example."""
    inputs = torch.tensor([[1.0, 2.0, 4.0], [0.0, 0.0, 0.0]], dtype=torch.float64, device="cpu")  # and the baseline's
    arguments = nn.Softmax(1), inputs, inputs.softmax(1), torch.zeros_like(inputs), inputs.cos()
    return not torch.equal(rule(*arguments), _rules()[nn.Tanh](*arguments))


def _rules() -> dict[type[nn.Module], Any]:
    rules: dict[type[nn.Module], Any] = _private("attr._core.deep_lift", "SUPPORTED_NON_LINEAR")
    return rules


def _private(module: str, name: str) -> Any:
    """Returns a private function of Captum, or None if this Captum has none of that name."""
    with suppress(ImportError):
        return getattr(importlib.import_module(f"captum.{module}"), name, None)
    return None


def _builders() -> tuple[Callable[[int], list[float]], Callable[[int], list[float]]]:
    """Replaces Captum's `gauss_legendre_builders`: functions of the number of points that return weights and nodes."""
    return (
        lambda n: (0.5 * gauss_legendre(n)[1]).tolist(),
        lambda n: (0.5 * (1 + gauss_legendre(n)[0])).tolist(),
    )


_RESCALED_SOFTMAX: ProcessSetting[Any] = ProcessSetting(
    lambda: _rules()[nn.Softmax], partial(setitem, _rules(), nn.Softmax), _rules()[nn.Tanh]
)
"""Captum reads its rules from a table of the module, so this change, too, is the process's."""

_CACHED_NODES: ProcessSetting[Any] = ProcessSetting(
    lambda: _private(*_NODES),
    lambda builders: setattr(importlib.import_module(f"captum.{_NODES[0]}"), _NODES[1], builders),
    _builders,
)
"""Captum reads the function from its module, so the change is the process's. A thread outside the blocks computes the
same values with it."""
