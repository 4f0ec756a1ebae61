"""Hooks as a person writes them, with PyTorch alone: what every capture is held against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Recording = dict[str, list[Any]]


class Handmade:
    """One forward and one backward pass under ``register_forward_pre_hook``, ``register_forward_hook`` and
    ``register_full_backward_hook`` on each of ``names``.

    Attributes:
        input: by module, the positional arguments of each call.
        output: by module, what each call returned.
        grad_input: by module, what the full backward hook got.
        grad_output: the same, at the output.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Iterable[str],
        forward: Callable[[], Tensor],
        scalar: Callable[[Tensor], Tensor],
    ) -> None:
        self.input: Recording = {}
        self.output: Recording = {}
        self.grad_input: Recording = {}
        self.grad_output: Recording = {}
        modules: Mapping[str, nn.Module] = dict(model.named_modules())
        handles = [handle for name in names for handle in self._register(name, modules[name])]
        try:
            self.prediction = forward()
            scalar(self.prediction).sum().backward()
        finally:
            for handle in handles:
                handle.remove()
            model.zero_grad(set_to_none=True)

    def _register(self, name: str, module: nn.Module) -> list[Any]:
        def before(_: nn.Module, args: Any) -> None:
            self.input.setdefault(name, []).append(_copied(args))

        def after(_: nn.Module, args: Any, output: Any) -> None:
            self.output.setdefault(name, []).append(_copied(output))

        def backward(_: nn.Module, grad_input: Any, grad_output: Any) -> None:
            self.grad_input.setdefault(name, []).append(_copied(grad_input))
            self.grad_output.setdefault(name, []).append(_copied(grad_output))

        return [
            module.register_forward_pre_hook(before),
            module.register_forward_hook(after),
            module.register_full_backward_hook(backward),
        ]


def first(value: Any) -> Tensor:
    """The first tensor of what a hook got."""
    found = value if isinstance(value, Tensor) else next(each for each in value if isinstance(each, Tensor))
    assert isinstance(found, Tensor)
    return found


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, (tuple, list)):
        return tuple(_copied(each) for each in value)
    return value
