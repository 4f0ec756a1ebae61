"""Hooks as a person writes them, with PyTorch alone: what every capture, edit and gradient is held against."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Change = Callable[[Tensor], Tensor]
"""What an edit makes of a value or a gradient, in PyTorch's words."""

Recording = dict[str, list[Any]]


class Hooks:
    """Hooks on modules of one model; as a `with` block, taken off at its end.

    Attributes:
        input: by module, the positional arguments of each call.
        output: by module, what each call returned.
        grad_input: by module, what the full backward hook got; the last call's comes first.
        grad_output: the same, at the output.
    """

    def __init__(self, model: nn.Module) -> None:
        self.input: Recording = {}
        self.output: Recording = {}
        self.grad_input: Recording = {}
        self.grad_output: Recording = {}
        self._modules = dict(model.named_modules())
        self._handles: list[Any] = []

    def __enter__(self) -> Hooks:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def see(self, name: str, *points: str) -> None:
        """Note a copy of what hooks at ``points`` of a module get, behind the changes that were made before."""
        for point in points:
            self._register(name, point, self._noting(getattr(self, point), name))

    def change(self, name: str, point: str, change: Change, *, call: int | None = None, calls: int = 1) -> None:
        """Change each tensor at a point of a module that runs ``calls`` times: in every call, or in one of them."""
        fired = itertools.count()

        def each(values: Any) -> Any:
            number = next(fired)
            if call not in (None, calls - 1 - number if point.startswith("grad_") else number):
                return values
            if isinstance(values, tuple):
                return tuple(_node(change(value)) if isinstance(value, Tensor) else value for value in values)
            return _node(change(values))

        self._register(name, point, each)

    def _noting(self, recording: Recording, name: str) -> Callable[[Any], None]:
        return lambda values: recording.setdefault(name, []).append(_copied(values))

    def _register(self, name: str, point: str, hook: Callable[[Any], Any]) -> None:
        module = self._modules[name]
        match point:
            case "input":
                handle = module.register_forward_pre_hook(lambda _, args: hook(args))
            case "output":
                handle = module.register_forward_hook(lambda _, args, output: hook(output))
            case "grad_input":
                handle = module.register_full_backward_hook(lambda _, gradients, __: hook(gradients))
            case _:
                handle = module.register_full_backward_pre_hook(lambda _, gradients: hook(gradients))
        self._handles.append(handle)


class Handmade(Hooks):
    """One forward and one backward pass with hooks at all four points of each of ``names``."""

    def __init__(
        self,
        model: nn.Module,
        names: Iterable[str],
        forward: Callable[[], Tensor],
        scalar: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__(model)
        with self:
            for name in names:
                self.see(name, "input", "output", "grad_input", "grad_output")
            self.prediction = forward()
            scalar(self.prediction).sum().backward()
        model.zero_grad(set_to_none=True)


def first(value: Any) -> Tensor:
    """The first tensor of what a hook got."""
    return flat(value)[0]


def flat(value: Any) -> list[Tensor]:
    """The tensors of what a hook got or an operator returned, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    return [tensor for each in value for tensor in flat(each)] if isinstance(value, (tuple, list)) else []


def noise(*shape: int, seed: int = 1) -> Tensor:
    """Seeded numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def equal(ours: Any, theirs: Tensor | None, tolerance: float = 0.0) -> bool:
    """Equal in shape and data type, and in every bit that can be told apart unless a relative tolerance is given; or
    neither is there."""
    if ours is None or theirs is None:
        return ours is theirs
    array, expected = np.asarray(ours), theirs.detach().resolve_neg()
    if str(expected.dtype).removeprefix("torch.") != array.dtype.name or tuple(expected.shape) != array.shape:
        return False
    if expected.dtype == torch.bfloat16:
        array, expected = array.astype(np.float32), expected.float()
    if tolerance:
        return bool(np.abs(array - expected.numpy()).max() <= tolerance * np.abs(expected.numpy()).max())
    return np.array_equal(array, expected.numpy(), equal_nan=True)


def _node(value: Tensor) -> Tensor:
    # PyTorch's own hooks see no gradient at a constant; it has one all the same.
    return value.requires_grad_() if torch.is_grad_enabled() and not value.requires_grad else value


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, (tuple, list)):
        return tuple(_copied(each) for each in value)
    return value
