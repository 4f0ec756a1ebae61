"""Everything that a request could leave behind in a model and in the process around it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.adapters.mirror_adapter import digest, hooks


@dataclass(frozen=True)
class State:
    """A model and the process around it, at one moment.

    Attributes:
        hooks: where hooks sit, on this model's modules and tensors and on all modules.
        numbers: a checksum of all parameters and buffers.
        tensors: which tensor objects they are, and where in memory.
        parts: the names of the modules, their classes and their own attributes.
        training: which modules are in training mode.
        trainable: which parameters have gradients.
        gradients: by parameter, the object that its gradient is, and a checksum.
        graph: parameters and buffers that hang in a graph.
        process: settings of PyTorch, in this process and thread.
    """

    hooks: tuple[str, ...]
    numbers: bytes
    tensors: tuple[tuple[str, int, int], ...]
    parts: tuple[tuple[str, type, tuple[str, ...]], ...]
    training: tuple[str, ...]
    trainable: tuple[str, ...]
    gradients: tuple[tuple[str, int, int], ...]
    graph: tuple[str, ...]
    process: tuple[Any, ...]

    @classmethod
    def of(cls, model: nn.Module) -> State:
        """As it is now."""
        tensors = [*model.named_parameters(), *model.named_buffers()]
        parameters = dict(model.named_parameters())
        modules = dict(model.named_modules())
        return cls(
            hooks=tuple(hooks(model)),
            numbers=digest(model),
            tensors=tuple((name, id(tensor), tensor.data_ptr()) for name, tensor in tensors),
            parts=tuple((name, type(module), tuple(vars(module))) for name, module in modules.items()),
            training=tuple(name for name, module in modules.items() if module.training),
            trainable=tuple(name for name, parameter in parameters.items() if parameter.requires_grad),
            gradients=tuple(
                (name, id(each.grad), hash(each.grad.cpu().numpy().tobytes()))
                for name, each in parameters.items()
                if each.grad is not None
            ),
            graph=tuple(name for name, tensor in tensors if tensor.grad_fn is not None),
            process=_process(),
        )

    def changes(self, later: State) -> list[str]:
        """What is another in ``later``, by name."""
        before, after = asdict(self), asdict(later)
        return [f"{name}: {before[name]} became {after[name]}" for name in before if before[name] != after[name]]


def _process() -> tuple[Any, ...]:
    return (
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.mha.get_fastpath_enabled(),
        torch.backends.cudnn.enabled,
        torch.get_num_threads(),
        torch._C._autograd._top_saved_tensors_default_hooks(False),
    )


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Assert that whatever the block does leaves everything as it was."""
    before = State.of(model)
    yield
    changes = before.changes(State.of(model))
    assert not changes, "\n".join(changes)


def nodes() -> int:
    """How many tensors are part of a graph: hooks and what they keep refer to each other through it, in circles that
    Python's collector cannot see. Only tensors are counted: looking at one makes objects of the nodes behind it."""
    gc.collect()
    return sum(type(each) is Tensor and each.grad_fn is not None for each in gc.get_objects())
