"""Networks on tables of numbers that are more than a chain: gates, experts, pairs, mixtures, functions of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import cutaway as ca
from tests.matrix.asking import Places
from tests.matrix.healthy_models import data
from tests.matrix.healthy_models.model import BY_MODULES, LRP, Healthy
from tests.matrix.healthy_models.parts import Cube, Make, Swish, chain, joined, linear

PLACES = Places("a", "a", ca.Neuron("a", (1,)))
HALVES = Places("c", "c", ca.Neuron("c", (1,)), explained=("sepal", "petal"))

LINEARS = {"a": linear(13, 16), "b": linear(16, 3)}


def soft_experts(m: Any, x: Tensor) -> Tensor:
    """Every expert answers, and counts as much as the router says."""
    shares = m.router(x).softmax(1)
    answers = torch.stack([torch.tanh(expert(x)) for expert in (m.one, m.two, m.three)], 2)
    return m.b(m.a((answers * shares.unsqueeze(1)).sum(2)))


def hard_experts(m: Any, x: Tensor) -> Tensor:
    """Only the expert that the router likes best answers, and counts as much as the router says."""
    hidden = m.a(x)
    shares = m.router(hidden.detach() if m.training else hidden).softmax(1)
    best, chosen = shares.max(1)
    out = torch.zeros(len(x), 8, dtype=x.dtype)
    for number, expert in enumerate((m.one, m.two)):
        rows = torch.where(chosen == number)[0]
        if len(rows):
            out = out.index_add(0, rows, torch.tanh(expert(hidden[rows])))
    return m.b(out * best.unsqueeze(1))


def closeness(m: Any, left: Tensor, right: Tensor) -> Tensor:
    """One encoder for both; a logit of how near they are, [batch]."""
    one, other = torch.tanh(m.b(torch.tanh(m.a(torch.cat([left, right]))))).chunk(2)
    return m.near((one - other).pow(2)).squeeze(1)


def likelihood(m: Any, x: Tensor) -> Tensor:
    """The parameters of three Gaussians: [batch, 9]."""
    hidden = torch.tanh(m.a(x))
    return torch.cat([m.shares(hidden).log_softmax(1), m.means(hidden), m.widths(hidden).exp()], 1)


def mixture_loss(parameters: Tensor, aims: Tensor) -> Tensor:
    """The negative logarithm of the likelihood of a mixture of Gaussians."""
    shares, means, widths = parameters.chunk(3, 1)
    found = shares - widths.log() - ((aims.unsqueeze(1) - means) / widths) ** 2 / 2
    return -found.logsumexp(1).mean()


def polar(m: Any, x: Tensor) -> Tensor:
    """Through complex numbers: a rotation, and magnitudes."""
    numbers = torch.complex(m.a(x), m.c(x)) * torch.exp(1j * m.phase)
    return m.b(torch.cat([(numbers * numbers).real, numbers.abs()], 1))


def highway(m: Any, x: Tensor) -> Tensor:
    """A gate lets the input pass where nothing new is known."""
    hidden = m.a(x)
    gate = torch.sigmoid(m.gate(hidden))
    return m.b(gate * torch.tanh(m.c(hidden)) + (1 - gate) * hidden)


def capsules(m: Any, x: Tensor) -> Tensor:
    """Groups of units, multiplied by einsum, and squashed to their length."""
    votes = torch.einsum("bgi,goi->bgo", m.a(x).reshape(-1, 4, 4), m.weights)
    squared = votes.pow(2).sum(2, keepdim=True)
    return m.b((votes * squared.sqrt() / (1 + squared)).flatten(1))


def factors(m: Any, x: Tensor) -> Tensor:
    """A factorization machine: products of all pairs of features."""
    pairs = (x @ m.factors).pow(2) - x.pow(2) @ m.factors.pow(2)
    return m.b(torch.cat([m.a(x), pairs / 2], 1))


def ordered(m: Any, x: Tensor) -> Tensor:
    """Running sums, products and maxima along the units."""
    hidden = torch.tanh(m.a(x))
    return m.b(hidden.cumsum(1) / 4 + (1 + hidden / 4).cumprod(1) + hidden.cummax(1).values)


def sorting(m: Any, x: Tensor) -> Tensor:
    """The units in order, their largest ones, spread and a logsumexp."""
    hidden = m.a(x)
    parts = [hidden.sort(1).values, hidden.topk(3, dim=1).values, hidden.std(1, keepdim=True)]
    return m.b(torch.cat([*parts, hidden.logsumexp(1, keepdim=True)], 1))


def solving(m: Any, x: Tensor) -> Tensor:
    """A linear system in the middle: a layer that is the solution of an equation."""
    hidden = m.a(x).reshape(-1, 4, 4)
    system = hidden @ hidden.transpose(1, 2) + 2 * torch.eye(4, dtype=x.dtype)
    return m.b(torch.linalg.solve(system, hidden).flatten(1))


def fixed_point(m: Any, x: Tensor) -> Tensor:
    """A deep equilibrium, by eight steps of iteration."""
    state = torch.zeros(len(x), 16, dtype=x.dtype)
    shift = m.a(x)
    for _ in range(8):
        state = torch.tanh(shift + m.c(state) / 2)
    return m.b(state)


def _wine(name: str, make: Make, **more: Any) -> Healthy:
    """A model of wines."""
    return Healthy(name, make, data.wine, PLACES, BY_MODULES, **more)


WIRINGS = (
    _wine("gated-linear", chain(first=linear(13, 32), gate=nn.GLU, a=linear(16, 8), act=nn.Tanh, b=linear(8, 3))),
    _wine("swiglu", joined(lambda m, x: m.b(F.silu(m.gate(x)) * m.a(x)), **LINEARS, gate=linear(13, 16))),
    _wine("highway", joined(highway, **LINEARS, c=linear(16, 16), gate=linear(16, 16))),
    _wine("maxout", joined(lambda m, x: m.b(m.a(x).reshape(-1, 8, 2).amax(2)), a=LINEARS["a"], b=linear(8, 3))),
    Healthy("bilinear", joined(lambda m, sepal, petal: m.b(torch.tanh(m.c(sepal, petal))),
        c=lambda: nn.Bilinear(2, 2, 12), b=linear(12, 3)), data.mixed, HALVES, BY_MODULES),
    Healthy("two-inputs", joined(lambda m, sepal, petal: m.head(m.act2(m.c(torch.cat([m.act(m.a(sepal)), petal], 1)))),
        a=linear(2, 8), act=nn.ReLU, c=linear(10, 8), act2=nn.ReLU, head=linear(8, 3)), data.mixed, HALVES, LRP),
    Healthy("siamese", joined(closeness, a=linear(4, 16), b=linear(16, 4), near=linear(4, 1)), data.pairs,
        Places("near", "near", ca.Neuron("near", (0,)), explained=("left", "right")), BY_MODULES,
        loss=F.binary_cross_entropy_with_logits),
    _wine("experts-soft", joined(soft_experts, router=linear(13, 3), one=linear(13, 8), two=linear(13, 8),
        three=linear(13, 8), a=linear(8, 8), b=linear(8, 3))),
    _wine("experts-hard", joined(hard_experts, a=LINEARS["a"], router=linear(16, 2), one=linear(16, 8),
        two=linear(16, 8), b=linear(8, 3))),
    Healthy("mixture-density", joined(likelihood, a=linear(10, 16), shares=linear(16, 3), means=linear(16, 3),
        widths=linear(16, 3)), data.diabetes, PLACES, BY_MODULES, loss=mixture_loss),
    _wine("complex-numbers", joined(polar, a=LINEARS["a"], c=LINEARS["a"], phase=lambda: nn.Parameter(torch.ones(16)),
        b=linear(32, 3))),
    _wine("capsules", joined(capsules, a=LINEARS["a"], weights=lambda: nn.Parameter(torch.randn(4, 4, 4) / 2),
        b=LINEARS["b"])),
    Healthy("kernels", joined(lambda m, x: m.b(torch.exp(-torch.cdist(m.a(x), m.centres).pow(2) / 8)), a=linear(4, 4),
        centres=lambda: nn.Parameter(torch.randn(10, 4)), b=linear(10, 3)), data.iris, PLACES, BY_MODULES),
    Healthy("factorization-machine", joined(factors, a=linear(4, 4), factors=lambda: nn.Parameter(torch.randn(4,
        4) / 2), b=linear(8, 3)), data.iris, PLACES, BY_MODULES),
    _wine("cumulative", joined(ordered, **LINEARS)),
    _wine("sorted", joined(sorting, a=LINEARS["a"], b=linear(21, 3))),
    _wine("linear-system", joined(solving, **LINEARS)),
    _wine("fixed-point", joined(fixed_point, **LINEARS, c=linear(16, 16))),
    _wine("checkpointed", joined(lambda m, x: m.b(checkpoint(lambda h: torch.tanh(m.c(F.silu(h))), m.a(x),
        use_reentrant=False)), **LINEARS, c=linear(16, 16))),
    _wine("own-function", joined(lambda m, x: m.b(Swish.apply(m.a(x))), **LINEARS)),
    _wine("own-function-cube", joined(lambda m, x: m.b(Cube.apply(m.a(x) / 4)), **LINEARS)),
    _wine("sine-layers", joined(lambda m, x: m.b(torch.sin(m.c(torch.sin(2 * m.a(x))))), **LINEARS, c=linear(16, 16))),
    _wine("cosine-similarity", joined(lambda m, x: 5 * F.cosine_similarity(m.c(torch.tanh(m.a(x))).unsqueeze(1),
        m.classes, dim=2), a=LINEARS["a"], c=linear(16, 16), classes=lambda: nn.Parameter(torch.randn(1, 3, 16)))),
    Healthy("polynomial", joined(lambda m, x: m.b(m.a(x) * m.c(x) + m.a(x).pow(2) / 4), **LINEARS, c=LINEARS["a"]),
        data.wine, Places("c", "c", ca.Neuron("c", (1,))), BY_MODULES),
    _wine("untrained-products", joined(lambda m, x: m.b(torch.tanh(m.a(x)) * torch.sigmoid(m.c(x))), **LINEARS,
        c=LINEARS["a"]), loss=None),
)  # fmt: skip
"""Models of one or two inputs of numbers, wired by functions."""
