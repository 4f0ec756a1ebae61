"""Leave a model as it was found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

_HOOK_TABLES = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


class Guard:
    """Keeps what a request must not change about one model: flags, gradients, buffers, hooks.

    Buffers are copied once, here; a request that changed one (a counter, a running statistic) finds it put back.
    Parameters are left alone by every pass the engine runs, so no copy of them is kept.
    """

    def __init__(self, module: nn.Module) -> None:
        self._modules = list(module.modules())
        self._parameters = list(module.parameters())
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
        self._versions = [buffer._version for buffer, _ in self._buffers]

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Run a request in evaluation mode; afterwards, whatever happened, the model is as before."""
        with ExitStack() as undo:
            undo.callback(self._restore_training, [module.training for module in self._modules])
            undo.callback(self._restore_flags, [parameter.requires_grad for parameter in self._parameters])
            undo.callback(self._restore_gradients, [parameter.grad for parameter in self._parameters])
            undo.callback(self._restore_buffers)
            undo.callback(self._sweep_hooks, [_hooks(module) for module in self._modules])
            for module in self._modules:
                module.training = False
            yield

    def trainable(self) -> None:
        """Let gradients flow from frozen parameters, until the block ends: for Captum's layer methods on models that
        take no floating input, which need some leaf to differentiate from."""
        for parameter in self._parameters:
            if parameter.is_floating_point():
                parameter.requires_grad_()

    def _restore_training(self, before: list[bool]) -> None:
        for module, training in zip(self._modules, before):
            module.training = training

    def _restore_flags(self, before: list[bool]) -> None:
        for parameter, requires_grad in zip(self._parameters, before):
            parameter.requires_grad = requires_grad

    def _restore_gradients(self, before: list[torch.Tensor | None]) -> None:
        for parameter, gradient in zip(self._parameters, before):
            parameter.grad = gradient

    def _restore_buffers(self) -> None:
        for index, (buffer, pristine) in enumerate(self._buffers):
            if buffer._version != self._versions[index]:
                with torch.no_grad():
                    buffer.copy_(pristine)
                self._versions[index] = buffer._version

    def _sweep_hooks(self, before: list[list[set[int]]]) -> None:
        # Our own hooks remove themselves; Captum leaves its own behind when a model raises under it.
        for module, known in zip(self._modules, before):
            for name, ids in zip(_HOOK_TABLES, known):
                table = getattr(module, name)
                for added in set(table) - ids:
                    del table[added]


def _hooks(module: nn.Module) -> list[set[int]]:
    return [set(getattr(module, name)) for name in _HOOK_TABLES]
