"""Models that are hard on floating point: large offsets, small differences, sharp choices. Nothing is wrong in them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from tests.matrix.asking import Places
from tests.matrix.healthy_models import data
from tests.matrix.healthy_models.model import BY_MODULES, Healthy
from tests.matrix.healthy_models.parts import joined, linear

PLACES = Places("a", "a", ca.Neuron("a", (1,)))

PARTS = {"a": linear(13, 16), "b": linear(16, 3)}


def _offset() -> data.Data:
    return data.Data({"x": data.wine().inputs["x"] + 300}, data.wine().aims)


def naive_variance(m: Any, x: Tensor) -> Tensor:
    """A norm of its own: the variance is the mean of squares minus the square of the mean."""
    hidden = m.a(x) + 30
    variance = hidden.pow(2).mean(1, keepdim=True) - hidden.mean(1, keepdim=True).pow(2)
    return m.b((hidden - hidden.mean(1, keepdim=True)) / (variance + 1e-3).sqrt())


def naive_distance(m: Any, x: Tensor) -> Tensor:
    """Distances to centres, from squares and products of numbers around 20."""
    hidden = m.a(x) + 20
    squares = hidden.pow(2).sum(1, keepdim=True) + m.centres.pow(2).sum(1) - 2 * hidden @ m.centres.t()
    return m.c(torch.exp(-squares / 20))


def uplift(m: Any, x: Tensor) -> Tensor:
    """What two networks that are nearly the same say differently."""
    other = torch.tanh(F.linear(x, m.a.weight + 0.003 * m.shift, m.a.bias))
    return 300 * m.b(other - torch.tanh(m.a(x)))


def sharp(m: Any, x: Tensor) -> Tensor:
    """A softmax at a low temperature."""
    hidden = m.a(x)
    return m.b((hidden * 20).softmax(1) * hidden)


def products(m: Any, x: Tensor) -> Tensor:
    """Fifty layers that multiply."""
    hidden = m.a(x)
    for _ in range(50):
        hidden = hidden * (1 + 0.1 * torch.sin(m.c(hidden)))
    return m.b(hidden)


def masked(m: Any, x: Tensor) -> Tensor:
    """Attention of units to each other, of which a mask of -1e9 hides some."""
    hidden = m.a(x)
    scores = hidden.unsqueeze(2) * hidden.unsqueeze(1) + torch.triu(torch.full((16, 16), -1e9), 1)
    return m.b((scores.softmax(2) @ hidden.unsqueeze(2)).squeeze(2))


def determinant(m: Any, x: Tensor) -> Tensor:
    """The logarithm of a determinant, and a Cholesky factor."""
    hidden = m.a(x).reshape(-1, 4, 4)
    matrix = hidden @ hidden.transpose(1, 2) + 1e-2 * torch.eye(4, dtype=x.dtype)
    factor = torch.linalg.cholesky(matrix)
    return m.c(torch.cat([torch.logdet(matrix).unsqueeze(1), factor.flatten(1)], 1))


def _hard(name: str, wiring: Any, **more: Any) -> Healthy:
    return Healthy(name, joined(wiring, **PARTS, **more), data.wine, PLACES, BY_MODULES)


def _far(name: str, wiring: Any) -> Healthy:
    return Healthy(name, joined(wiring, **PARTS), _offset, PLACES, BY_MODULES)


HARD = (
    _hard("hard-variance", naive_variance),
    Healthy("hard-distance", joined(naive_distance, a=PARTS["a"], c=linear(10, 3),
        centres=lambda: nn.Parameter(20 + torch.randn(10, 16))), data.wine, PLACES, BY_MODULES),
    _hard("hard-uplift", uplift, shift=lambda: nn.Parameter(torch.randn(16, 13))),
    _hard("hard-softmax", sharp),
    _hard("hard-logarithms", lambda m, x: m.b((F.softplus(m.a(x)) + 1e-6).log().cumsum(1).exp().clamp(max=100))),
    _far("hard-centred", lambda m, x: m.b(torch.tanh(m.a(x - x.mean(1, keepdim=True))))),
    _far("hard-layer-norm", lambda m, x: m.b(torch.tanh(m.a(F.layer_norm(x, (13,)))))),
    _hard("hard-root", lambda m, x: m.b((m.a(x).pow(2) + 1e-8).sqrt())),
    _hard("hard-products", products, c=linear(16, 16)),
    _hard("hard-mask", masked),
    Healthy("hard-determinant", joined(determinant, a=PARTS["a"], c=linear(17, 3)), data.wine, PLACES, BY_MODULES),
)  # fmt: skip
"""Models of one input of numbers."""
