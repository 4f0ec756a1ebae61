"""Parts of models that are wrong on purpose: gradients, rectifiers by other names, rows that depend on each other."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Part: TypeAlias = Callable[[Tensor], Any]


class Changed(torch.autograd.Function):
    """Its input, and a gradient that ``change`` makes another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Part) -> Tensor:
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.change(gradients[0]), None


def changed(change: Part) -> Part:
    """A part that passes values on, and gradients through ``change``."""
    return lambda h: Changed.apply(h, change)


def scaled(factor: float) -> Part:
    return changed(lambda gradient: gradient * factor)


class ScaledBothWays(torch.autograd.Function):
    """The same wrong factor in ``backward`` and in ``jvp``, as of one who believes in it."""

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * ctx.factor, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        moved: Tensor = tangents[0] * ctx.factor
        return moved


class SwappedTwo(torch.autograd.Function):
    """The sum of two tensors, whose gradients are doubled only where both are asked for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        gradient = gradients[0] * 2 if all(ctx.needs_input_grad) else gradients[0]
        return gradient, gradient


def both_doubled(x: Tensor, y: Tensor) -> Any:
    return SwappedTwo.apply(x, y)


@torch.library.custom_op("cutaway_tests::sine", mutates_args=())
def sine(x: Tensor) -> Tensor:
    """A sine without a forward-mode formula, whose derivative is a tenth too large."""
    return torch.sin(x)


sine.register_fake(torch.empty_like)
sine.register_autograd(
    lambda ctx, gradient: gradient * ctx.saved_tensors[0].cos() * 1.1,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


def hooked(factor: float) -> Part:
    """A hook on the tensor."""

    def pass_on(h: Tensor) -> Tensor:
        copy = h * 1.0
        if copy.requires_grad:
            copy.register_hook(lambda gradient: gradient * factor)
        return copy

    return pass_on


def saved_coarsely(h: Tensor) -> Tensor:
    """A sine whose saved input is rounded."""
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.round(), lambda packed: packed):
        return torch.sin(h)


def recomputed_otherwise() -> Part:
    """A checkpoint whose second run is not its first."""
    runs = 0

    def curve(h: Tensor) -> Tensor:
        nonlocal runs
        runs += 1
        again = torch.is_grad_enabled() and torch._C._current_graph_task_id() != -1
        return torch.tanh(h * 1.5) if again else torch.tanh(h)

    return lambda h: checkpoint(curve, h, use_reentrant=False)


def without_grad(h: Tensor) -> Tensor:
    with torch.no_grad():
        return h * 1.0


def in_inference_mode(h: Tensor) -> Tensor:
    with torch.inference_mode():
        other = h * 1.0
    return other.clone()


CUT: dict[str, Part] = {
    "detach": lambda h: h.detach(),
    "data": lambda h: h.data,
    "no_grad": without_grad,
    "inference_mode": in_inference_mode,
    "numpy": lambda h: torch.from_numpy(h.detach().numpy()),
    "numpy and a sine": lambda h: torch.from_numpy(np.sin(h.detach().numpy())),
    "np.asarray": lambda h: torch.as_tensor(np.asarray(h.detach())),
    "tolist": lambda h: torch.tensor(h.tolist(), dtype=h.dtype),
    "item": lambda h: torch.tensor([[each.item() for each in row] for row in h], dtype=h.dtype),
    "nn.Parameter": nn.Parameter,
    "a copy into a buffer": lambda h: torch.empty_like(h).copy_(h.detach()),
}
"""Copies of a tensor without its gradient."""


WRONG: dict[str, Part] = {
    "an autograd function": scaled(1.2),
    "an autograd function with jvp": lambda h: ScaledBothWays.apply(h, 1.2),
    "a hook on a tensor": hooked(1.2),
    "a custom operator": sine,
    "saved tensors rounded": saved_coarsely,
    "a straight-through estimator": lambda h: h + ((h * 1.5).round() / 1.5 - h).detach(),
    "a gradient clipped": changed(lambda g: g.clamp(-0.05, 0.05)),
    "a gradient's negative part lost": changed(lambda g: g.clamp(min=0)),
    "a gradient with noise": changed(lambda g: g * (1 + 0.3 * torch.randn_like(g))),
    "a gradient of one row lost": changed(lambda g: torch.cat([0 * g[:1], g[1:]])),
    "gradients of rows exchanged": changed(lambda g: g.flip(0)),
    "gradients of units exchanged": changed(lambda g: g.roll(1, 1)),
    "a gradient rounded": changed(lambda g: (g * 8).round() / 8),
    "a gradient's mean": changed(lambda g: g.mean(1, keepdim=True).expand_as(g)),
    "one unit's gradient lost": changed(lambda g: torch.cat([0 * g[:, :4], g[:, 4:]], 1)),
}
"""Parts whose backward pass is wrong."""


class OwnReLU(torch.autograd.Function):
    """A ReLU of the model's own, and its derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * (ctx.saved_tensors[0] > 0)


def by_index(h: Tensor) -> Tensor:
    h = h.clone()
    h[h < 0] = 0
    return h


RELUS: dict[str, Part] = {
    "torch.relu": torch.relu,
    "F.relu": F.relu,
    "F.relu in place": lambda h: F.relu(h * 1.0, inplace=True),
    "Tensor.relu": lambda h: h.relu(),
    "Tensor.relu_": lambda h: (h * 1.0).relu_(),
    "clamp": lambda h: h.clamp(min=0),
    "clamp_": lambda h: (h * 1.0).clamp_(min=0),
    "clamp_min": lambda h: h.clamp_min(0),
    "torch.clip": lambda h: torch.clip(h, 0),
    "maximum": lambda h: torch.maximum(h, torch.zeros_like(h)),
    "fmax": lambda h: torch.fmax(h, torch.zeros_like(h)),
    "torch.max": lambda h: torch.max(h, torch.zeros_like(h)),
    "amax of a stack": lambda h: torch.stack([h, torch.zeros_like(h)]).amax(0),
    "where": lambda h: torch.where(h > 0, h, 0.0),
    "a product with a mask": lambda h: h * (h > 0),
    "a product with a step": lambda h: h * torch.heaviside(h.detach(), torch.zeros((), dtype=h.dtype)),
    "half of a sum": lambda h: (h + h.abs()) / 2,
    "threshold": lambda h: F.threshold(h, 0, 0),
    "leaky_relu": lambda h: F.leaky_relu(h, 0.0),
    "masked_fill": lambda h: h.masked_fill(h < 0, 0),
    "an assignment by index": by_index,
    "hardtanh": lambda h: F.hardtanh(h, 0, 1e6),
    "relu6": F.relu6,
    "elu": lambda h: F.elu(h, alpha=0.0),
    "prelu": lambda h: F.prelu(h, torch.zeros(1, dtype=h.dtype)),
    "less of its negative part": lambda h: h - h.clamp(max=0),
    "a function of the model's own": OwnReLU.apply,
}
"""ReLUs that are no ``nn.ReLU``."""


FUNCTIONS: dict[str, tuple[Part, Callable[[], nn.Module]]] = {
    "sigmoid": (torch.sigmoid, nn.Sigmoid),
    "Tensor.sigmoid": (lambda h: h.sigmoid(), nn.Sigmoid),
    "expit": (torch.special.expit, nn.Sigmoid),
    "1 / (1 + exp(-h))": (lambda h: 1 / (1 + torch.exp(-h)), nn.Sigmoid),
    "tanh": (torch.tanh, nn.Tanh),
    "F.tanh": (lambda h: F.tanh(h), nn.Tanh),
    "2 sigmoid(2 h) - 1": (lambda h: 2 * torch.sigmoid(2 * h) - 1, nn.Tanh),
    "softplus": (F.softplus, nn.Softplus),
    "log1p(exp(h))": (lambda h: torch.log1p(torch.exp(h)), nn.Softplus),
    "logaddexp": (lambda h: torch.logaddexp(h, torch.zeros_like(h)), nn.Softplus),
    "elu": (F.elu, nn.ELU),
    "leaky_relu": (F.leaky_relu, nn.LeakyReLU),
    "leaky_relu by where": (lambda h: torch.where(h > 0, h, 0.01 * h), nn.LeakyReLU),
    "leaky_relu by maximum": (lambda h: torch.maximum(h, 0.01 * h), nn.LeakyReLU),
}
"""Nonlinearities as functions, and the modules for which Captum has a rule."""


COUPLED: dict[str, Part] = {
    "the batch's mean subtracted": lambda h: h - h.mean(0),
    "divided by the batch's largest": lambda h: 3 * h / h.abs().amax(),
    "a softmax over the rows": lambda h: 3 * h.softmax(0),
    "divided by the number of rows": lambda h: 1.5 * h / len(h),
    "the last row added": lambda h: h + 0.5 * h[-1:],
    "the row before added": lambda h: h + 0.5 * h.roll(1, 0),
    "sums of the rows so far": lambda h: h.cumsum(0),
    "normed over the batch": lambda h: F.batch_norm(h, None, None, training=True),
    "the batch's norm": lambda h: 3 * h / h.norm(),
}
"""Parts in which rows depend on each other, or on their number."""


class Rarely:
    """Strikes out a batch now and then, by one generator."""

    def __init__(self, draw: Callable[[], float], probability: float = 0.05) -> None:
        self._draw, self._probability = draw, probability

    def __call__(self, h: Tensor) -> Tensor:
        return h * (0.5 if self._draw() < self._probability else 1.0)


def torch_draw(generator: torch.Generator) -> float:
    return float(torch.rand((), generator=generator))


GENERATOR = torch.Generator().manual_seed(5)
NUMBERS = np.random.default_rng(5)


DRAWS: dict[str, Callable[[Any], float]] = {
    "torch": lambda m: float(torch.rand(())),
    "numpy": lambda m: float(np.random.rand()),
    "random": lambda m: random.random(),
    "a torch.Generator on the module": lambda m: torch_draw(m.own),
    "a numpy Generator on the module": lambda m: float(m.numbers.random()),
    "a RandomState in a list": lambda m: float(m.listed[0].rand()),
    "a random.Random in a dict": lambda m: float(m.by_name["r"].random()),
    "a torch.Generator of the program": lambda m: torch_draw(GENERATOR),
    "a numpy Generator of the program": lambda m: float(NUMBERS.random()),
}
"""Random numbers, from where a model may have them."""


def with_generators(model: nn.Module) -> nn.Module:
    """Puts generators on the model, each in another way."""
    model.own = torch.Generator().manual_seed(7)  # type: ignore[assignment]
    model.numbers = np.random.default_rng(7)  # type: ignore[assignment]
    model.listed = [np.random.RandomState(7)]  # type: ignore[assignment]
    model.by_name = {"r": random.Random(7)}  # type: ignore[assignment]
    return model
