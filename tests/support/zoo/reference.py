"""What PyTorch alone says about a module: slow, obvious, and without a line of the service.

One module at a time, in a pass of its own: each tensor that goes into it or comes out of it is replaced by a clone that
is kept, and ``torch.autograd.grad`` is asked for the gradient at each of the clones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from tests.support.zoo.architecture import Architecture

Array = npt.NDArray[Any]

Call = dict[str, dict[str, Array]]
"""One call of a module: by point, the tensors there by path. A gradient that is None is not there."""

Swap = Callable[[str, Tensor], Tensor]


def reference(architecture: Architecture) -> dict[str, list[Call]]:
    """Every call of every module that fires, by the module's name."""
    model = architecture.build()
    found = {name: calls_of(model, module, architecture) for name, module in model.named_modules()}
    return {name: calls for name, calls in found.items() if calls}


def calls_of(model: nn.Module, module: nn.Module, architecture: Architecture) -> list[Call]:
    """Run ``model`` forward and backward, watching one module of it."""
    calls: list[Call] = []
    kept: list[tuple[Tensor, dict[str, Array], str]] = []

    def keeping(values: dict[str, Array], gradients: dict[str, Array]) -> Swap:
        def swap(path: str, tensor: Tensor) -> Tensor:
            clone = tensor.clone()
            values[path] = clone.detach().numpy()
            if clone.is_floating_point():
                kept.append((clone.requires_grad_(), gradients, path))
            return clone.clone()  # the clone that is kept is given to nobody: nothing can write to it

        return swap

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        calls.append({point: {} for point in ("input", "output", "grad_input", "grad_output")})
        swap = keeping(calls[-1]["input"], calls[-1]["grad_input"])
        if len(args) == 1 and not kwargs:
            return (swapped(args[0], swap, ""),), {}
        return swapped(args, swap, ""), {key: swapped(value, swap, key) for key, value in kwargs.items()}

    def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return swapped(output, keeping(calls[-1]["output"], calls[-1]["grad_output"]), "")

    hooks = [module.register_forward_pre_hook(before, with_kwargs=True), module.register_forward_hook(after)]
    try:
        scalar = target(model, architecture)
    finally:
        for hook in hooks:
            hook.remove()
    if kept:
        gradients = torch.autograd.grad(scalar, [clone for clone, _, _ in kept], allow_unused=True)
        for (_, there, path), gradient in zip(kept, gradients):
            if gradient is not None:
                there[path] = gradient.numpy()
    return calls


def target(model: nn.Module, architecture: Architecture) -> Tensor:
    """The target's scalar of each example, summed."""
    logits = architecture.read(model(**{name: tensor.clone() for name, tensor in architecture.inputs.items()}))
    return torch.stack([row[index] for row, index in zip(logits, architecture.target)]).sum()


def swapped(value: Any, swap: Swap, path: str) -> Any:
    """``value`` with each tensor in it swapped, whatever it is wrapped in."""
    if isinstance(value, Tensor):
        return swap(path, value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _dataclass(value, swap, path)
    if isinstance(value, dict):
        return {key: swapped(item, swap, f'{path}["{key}"]') for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [swapped(item, swap, f"{path}[{index}]") for index, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _dataclass(value: Any, swap: Swap, path: str) -> Any:
    # transformers' ModelOutput among them; as a mapping it leaves out the fields that are None.
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return type(value)(**{name: swapped(item, swap, f"{path}.{name}") for name, item in fields.items()})


def unused(architecture: Architecture, fired: Mapping[str, Any]) -> set[str]:
    """The modules that were never called, but for lists, which never are."""
    everywhere = architecture.build().named_modules()
    return {name for name, module in everywhere if name not in fired and not isinstance(module, nn.ModuleList)}
