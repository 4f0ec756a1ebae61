"""A model on the table: everything the engine needs to know about it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from cutaway.engine.admission import admit
from cutaway.engine.attention import one_path
from cutaway.engine.guard import Guard
from cutaway.engine.leaves import leaves
from cutaway.engine.memory import ran_out
from cutaway.engine.modules import ModuleTree
from cutaway.engine.patience import ENDLESS, Patience
from cutaway.errors import CutawayError, Reason, error
from cutaway.results import InputSpec

Inputs = dict[str, Tensor]
"""Tensors by forward-argument name, in the order in which the model declares them; axis 0 is the batch."""

Outputs = dict[str, Tensor]
"""What a model returned, by name; the first is the one that targets are read from."""


@dataclass
class Passes:
    """How many passes were run since the counters were last set to zero.

    Backward passes are counted by hooks on the model's outputs, so that Captum's own are counted too.
    """

    forwards: int = 0
    _backwards: set[int] = field(default_factory=set)

    @property
    def backwards(self) -> int:
        """Backward passes that began at an output of the model."""
        return len(self._backwards)

    def reset(self) -> None:
        """Start counting anew."""
        self.forwards = 0
        self._backwards = set()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Count nothing while the block runs."""
        counted = (self.forwards, set(self._backwards))
        try:
            yield
        finally:
            self.forwards, self._backwards = counted

    def count_backwards(self, outputs: Outputs) -> None:
        """Count the backward passes that will start from what a forward pass returned."""
        for output in outputs.values():
            if output.requires_grad and not output.is_leaf:  # a leaf may be a parameter, and would keep the hook
                output.register_hook(lambda _: self._backwards.add(torch._C._current_graph_task_id()))


@dataclass
class Subject:
    """One model, ready to be inspected.

    Attributes:
        module: the model, on its device.
        call: runs it on named inputs; by default ``module(**inputs)``.
        inputs: what it takes, in order; empty where nothing is known, and then nothing is checked beforehand.
        labels: the names of its classes; empty for a model without classes.
        traits: what was found out about it, once for each kind of inputs.
    """

    module: nn.Module
    call: Callable[[Inputs], Any]
    inputs: Sequence[InputSpec] = ()
    labels: Sequence[str] = ()
    tree: ModuleTree = field(init=False)
    guard: Guard = field(init=False)
    device: torch.device = field(init=False)
    dtype: torch.dtype = field(init=False)
    weights_sha256: str = field(init=False)
    passes: Passes = field(init=False, default_factory=lambda: Passes())
    traits: dict[Hashable, Any] = field(init=False, default_factory=dict, repr=False)
    _each_pass: Callable[[], AbstractContextManager[None]] = field(init=False, default=nullcontext)
    _patience: Patience = field(init=False, default=ENDLESS)

    def __post_init__(self) -> None:
        admit(self.module)
        self.tree = ModuleTree(self.module)
        self.guard = Guard(self.module)
        state = [*self.module.parameters(), *self.module.buffers()]
        self.device = state[0].device if state else torch.device("cpu")
        floating = [tensor.dtype for tensor in state if tensor.is_floating_point()]
        self.dtype = floating[0] if floating else torch.float32
        self.weights_sha256 = _digest(self.module)

    def run(self, inputs: Inputs) -> Outputs:
        """One forward pass, on copies of ``inputs``, which the model may change in place.

        Raises:
            InvalidArgument: ``MODEL_FAILED``, where the model raised, with what it said.
            DeadlineExceeded: nobody waits for it any more.
        """
        self._patience.refuse()
        self.guard.renew()
        self.passes.forwards += 1
        try:
            with self._each_pass(), self._kernels(), one_path():
                returned = self.call({name: tensor.clone() for name, tensor in inputs.items()})
        except CutawayError:
            raise
        except Exception as failure:
            if ran_out(failure):
                raise
            shapes = ", ".join(f"{name} {dtype_text(t)}{list(t.shape)}" for name, t in inputs.items())
            raise _failed("forward", failure, f" on {shapes}") from failure
        outputs = _named(returned)
        self.passes.count_backwards(outputs)
        return outputs

    def dice(self) -> AbstractContextManager[None]:
        """What draws random numbers inside the block draws them again afterwards."""
        return torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else [])

    @contextmanager
    def waited_for(self, patience: Patience) -> Iterator[None]:
        """Begin no pass that nobody waits for, for as long as the block runs."""
        self._patience = patience
        try:
            yield
        finally:
            self._patience = ENDLESS

    @contextmanager
    def within(self, each_pass: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        """Run every forward pass inside a context of its own, for as long as the block runs."""
        self._each_pass = each_pass
        try:
            yield
        finally:
            self._each_pass = nullcontext

    def _kernels(self) -> AbstractContextManager[None]:
        # cuDNN's RNNs refuse a backward pass in evaluation mode; PyTorch's own kernels do not. Every other model
        # runs under the owner's own settings, which cudnn.flags() would reset.
        recurrent = any(isinstance(module, nn.RNNBase) for module in self.tree.modules.values())
        if self.device.type == "cuda" and recurrent and torch.is_grad_enabled():
            return cast(AbstractContextManager[None], torch.backends.cudnn.flags(enabled=False))
        return nullcontext()


def dtype_text(tensor: Tensor) -> str:
    """``float32``, without ``torch.``."""
    return str(tensor.dtype).removeprefix("torch.")


def _named(returned: Any) -> Outputs:
    if isinstance(returned, Tensor):
        return {"output": returned}
    if isinstance(returned, Mapping):
        found = {str(key): value for key, value in returned.items() if isinstance(value, Tensor)}
    else:
        found = {f"output{path}": tensor for path, tensor in leaves(returned).items()}
    if not found:
        raise error(
            Reason.MODEL_FAILED,
            f"the model returned no tensor but a {type(returned).__name__}; let the adapter's forward return a "
            "tensor or a dict of tensors",
        )
    return found


def gradients(
    scalars: Tensor, wanted: Sequence[Tensor | GradientEdge], *, again: bool = False
) -> tuple[Tensor | None, ...]:
    """The gradient of the sum of ``scalars`` at each of ``wanted``, None where it does not arrive. Each row's scalar
    depends on its own row alone, so that the sum's gradient is every row's. No parameter's ``grad`` is written.
    ``again``: keep the graph for another pass.

    Raises:
        InvalidArgument: ``MODEL_FAILED``, where the model's own backward raised.
    """
    roots: Any = wanted  # the stubs want either tensors or edges
    try:
        found: tuple[Tensor | None, ...] = torch.autograd.grad(
            scalars.sum(), roots, retain_graph=again, allow_unused=True
        )
    except CutawayError:
        raise
    except Exception as failure:
        if ran_out(failure):
            raise
        raise _failed("backward", failure) from failure
    return found


def _failed(what: str, failure: Exception, on: str = "") -> CutawayError:
    text = (str(failure).strip().splitlines() or [""])[0][:400]
    kind = type(failure).__name__
    return error(Reason.MODEL_FAILED, f"the model's {what} raised {kind}{on}{': ' if text else ''}{text}")


def _digest(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        if isinstance(tensor, Tensor):
            digest.update(f"{name}:{tensor.dtype}:{list(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
