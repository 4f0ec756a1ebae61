"""Leave a model as it was found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

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

    What a forward pass may write to is copied once, here, and put back before each pass and after each request:
    buffers (a counter, a running statistic, a cache), and the weights of embeddings that renormalise themselves. Other
    parameters are left alone by every pass the engine runs, so no copy of them is kept.
    """

    def __init__(self, module: nn.Module) -> None:
        self._modules = list(module.modules())
        self._parameters = list(module.parameters())
        self._bindings = [(each, name, tensor) for each in self._modules for name, tensor in each._buffers.items()]
        self._written = [*module.buffers(), *_renormalised(self._modules)]
        self._pristine = [tensor.detach().clone() for tensor in self._written]

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Run a request in evaluation mode; afterwards, whatever happened, the model is as before."""
        with ExitStack() as undo:
            undo.callback(self._restore_training, [module.training for module in self._modules])
            undo.callback(self._restore_flags, [parameter.requires_grad for parameter in self._parameters])
            undo.callback(self._restore_gradients, [parameter.grad for parameter in self._parameters])
            undo.callback(self.renew)
            yield

    @contextmanager
    def swept(self) -> Iterator[None]:
        """Remove every hook that was added meanwhile. Our own hooks remove themselves; Captum leaves its own behind
        when a model raises under it. Hooks that a model gives itself in its first pass are there before, and stay."""
        before = [_hooks(module) for module in self._modules]
        try:
            yield
        finally:
            self._sweep_hooks(before)

    def renew(self) -> None:
        """Make the model ready for a pass: evaluation mode, and every buffer as it was loaded."""
        for module in self._modules:
            if module.training:
                module.training = False
        for owner, name, tensor in self._bindings:
            owner._buffers[name] = tensor
        with torch.no_grad():
            for tensor in self._written:
                if tensor.grad_fn is not None:  # written to in place by something that is differentiated
                    tensor.detach_()
            if self._written:
                # What a pass did not write is the same as before: the graph of an earlier pass may still need it.
                with _unsafe_preserve_version_counter(tuple(self._written)):
                    torch._foreach_copy_(self._written, self._pristine)

    def trainable(self) -> None:
        """Let gradients flow from frozen parameters, until the block ends: for Captum's layer methods on models that
        take no floating input, which need some leaf to differentiate from."""
        for parameter in self._parameters:
            if parameter.is_floating_point():
                parameter.requires_grad_()

    def _restore_training(self, before: list[bool]) -> None:
        for module, training in zip(self._modules, before):
            if module.training is not training:
                module.training = training

    def _restore_flags(self, before: list[bool]) -> None:
        for parameter, requires_grad in zip(self._parameters, before):
            if parameter.requires_grad is not requires_grad:
                parameter.requires_grad = requires_grad

    def _restore_gradients(self, before: list[Tensor | None]) -> None:
        for parameter, gradient in zip(self._parameters, before):
            if parameter.grad is not gradient:
                parameter.grad = gradient

    def _sweep_hooks(self, before: list[list[set[int]]]) -> None:
        for module, known in zip(self._modules, before):
            for name, ids in zip(_HOOK_TABLES, known):
                table = getattr(module, name)
                for added in set(table) - ids:
                    del table[added]


def _renormalised(modules: Iterable[nn.Module]) -> Iterator[Tensor]:
    for module in modules:
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
            yield module.weight


def _hooks(module: nn.Module) -> list[set[int]]:
    return [set(getattr(module, name)) for name in _HOOK_TABLES]
