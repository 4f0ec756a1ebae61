"""A network with everything that a request could leave a trace in, and an adapter that tells the traces.

It travels alone inside an archive, so that a worker of TorchServe can be asked, over the wire, in which state it is.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module

from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec
from cutaway.engine.model.inspected_model import Inputs

TABLES = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
)
COUNTS = ("hooks", "modes", "training", "frozen", "gradients", "rows")


class Halves(nn.Module):
    """Returns two tensors by name."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        low, high = x.chunk(2, dim=1)
        return {"low": low, "high": high}


class Careful(nn.Module):
    """Goes on with what it has, should the part inside it raise."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.inside(x)
        except Exception:
            return x


class Mirror(nn.Module):
    """An image [batch, 1, 6, 6] to five logits: operators between modules, a module that is called twice, one that
    catches every exception, a buffer that each pass writes to, dropout, a frozen parameter. Where there is no light at
    all in the images, it raises."""

    passes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.halves = Halves()
        self.twice = nn.Linear(32, 32)
        self.drop = nn.Dropout(0.5)
        self.careful = Careful(nn.Linear(32, 32))
        self.last = nn.Linear(32, 5)
        self.last.bias.requires_grad_(False)
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, image: Tensor) -> Tensor:
        """Logits [batch, 5]."""
        self.passes += 1
        halves = self.halves(F.relu(self.norm(self.conv(image))))
        if not len(image[image > 0]):  # no read of a number: a model that decides by one shares no pass
            raise ValueError("there is no light")
        h = torch.tanh(self.twice(halves["low"].flatten(1)))
        h = torch.tanh(self.twice(h + halves["high"].flatten(1)))
        return self.last(self.careful(self.drop(h)))


class MirrorAdapter(Adapter):
    """Beside the logits, for callers who send ``ask``: the state that the worker was in when the pass began. The
    largest number in ``ask`` is how many milliseconds the pass waits."""

    inputs = (InputSpec("image", "float32", (-1, 1, 6, 6)), InputSpec("ask", "int64", (-1,), optional=True))

    def build(self) -> nn.Module:
        """Seeded, so that two processes build the same one."""
        torch.manual_seed(0)
        return shaken(Mirror())

    def forward(self, model: nn.Module, inputs: Inputs) -> Any:
        """Logits; and ``counts`` [batch, 6] as `COUNTS` names them, ``digest`` [batch, 32] as `digest` makes it."""
        if "ask" not in inputs:
            return model(inputs["image"])
        time.sleep(int(inputs["ask"].max()) / 1000)
        rows = len(inputs["ask"])
        counts = torch.tensor([counted(model)]).expand(rows, -1)
        state = torch.tensor([list(digest(model))]).expand(rows, -1)
        return {"logits": model(inputs["image"]), "counts": counts, "digest": state}


def shaken(model: nn.Module) -> nn.Module:
    """``model`` without the zeros and ones that freshly made networks are full of."""
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor), alpha=0.1)
    return model


def counted(model: nn.Module) -> list[int]:
    """How many hooks, modes of PyTorch, modules in training, parameters without gradients, parameters with a gradient,
    and calls that the worker was handed together."""
    parameters = list(model.parameters())
    return [
        len(list(hooks(model))),
        torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack(),
        sum(module.training for module in model.modules()),
        sum(not parameter.requires_grad for parameter in parameters),
        sum(parameter.grad is not None for parameter in parameters),
        _rows_of_batch(),
    ]


def hooks(model: nn.Module) -> Iterator[str]:
    """Where each hook sits: on modules of ``model``, on its tensors, on all modules there are."""
    for name, module in model.named_modules():
        yield from (f"{name}.{table}" for table in TABLES for _ in getattr(module, table))
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        yield from (f"{name}._backward_hooks" for _ in tensor._backward_hooks or ())
        yield from (f"{name}.accumulated" for _ in getattr(tensor, "_post_accumulate_grad_hooks", None) or ())
    for table, content in vars(torch_module).items():
        if table.startswith("_global_") and isinstance(content, dict):
            yield from (table for _ in content)


def digest(model: nn.Module) -> bytes:
    """SHA-256 of all parameters and buffers: names, data types, shapes and bytes."""
    found = hashlib.sha256()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return found.digest()


def _rows_of_batch() -> int:
    # Nothing tells a model who else is in its batch; the worker's own frame does.
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "run" and {"calls", "later"} <= frame.f_locals.keys():
            return len(frame.f_locals["calls"])
    return 0
