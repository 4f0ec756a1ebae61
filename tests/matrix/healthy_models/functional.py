"""Networks that are called by ``torch.func``, whose weights are computed, or whose numbers are of few bits."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.ao import quantization
from torch.func import functional_call, jacrev, stack_module_state, vmap
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune
from torch.nn.utils import spectral_norm as old_spectral_norm
from torch.nn.utils import weight_norm as old_weight_norm

import cutaway as ca
from tests.matrix.asking import Places
from tests.matrix.healthy_models import data
from tests.matrix.healthy_models.model import BY_MODULES, GUIDED, LRP, Healthy
from tests.matrix.healthy_models.parts import Make, chain, joined, linear

PLACES = Places("a", "a", ca.Neuron("a", (1,)))
BEHIND = Places("b", "b", ca.Neuron("b", (1,)))
PASSED = BEHIND._replace(passed=("act2",))
"""Relevance passes the softplus by a rule that is given."""

MAPS = Places("b", "b", ca.Neuron("b", (1, 1, 1)))


# torch.func.


def called_functionally(m: Any, x: Tensor) -> Tensor:
    """A part of the network runs with weights that are given: its own, halved."""
    halved = {name: weight / 2 for name, weight in m.inner.named_parameters()}
    return m.b(functional_call(m.inner, halved, (torch.tanh(m.a(x)),)))


def row_by_row(m: Any, x: Tensor) -> Tensor:
    """A function of one row, under ``vmap``."""
    hidden = m.a(x)
    return m.b(vmap(lambda row: torch.tanh(row - row.mean()) * row.norm())(hidden) / 4)


def row_by_row_in_modules(m: Any, x: Tensor) -> Tensor:
    """Modules that are called under ``vmap``, in front of one that is not."""
    return m.head(torch.tanh(m.b(vmap(lambda row: torch.tanh(m.c(torch.tanh(m.a(row)))))(x))))


def over_columns(m: Any, x: Tensor) -> Tensor:
    """``vmap`` over another axis than the rows."""
    columns = vmap(lambda column, scale: torch.sin(column * scale), in_dims=(1, 0), out_dims=1)
    return m.b(columns(m.a(x), m.scales))


def ensemble(m: Any, x: Tensor) -> Tensor:
    """Three networks with stacked weights, run at once under ``vmap``."""
    parameters, buffers = stack_module_state([m.one, m.two, m.three])
    base = m.one

    def call(weights: Any, state: Any, hidden: Tensor) -> Tensor:
        found: Tensor = functional_call(base, (weights, state), (hidden,))
        return found

    return m.b(vmap(call, in_dims=(0, 0, None))(parameters, buffers, torch.tanh(m.a(x))).mean(0))


def hypernetwork(m: Any, x: Tensor) -> Tensor:
    """The weights of a layer are what another layer says, row by row."""
    weights = m.c(x).reshape(-1, 4, 4) / 4
    return m.b(torch.tanh(torch.einsum("bij,bj->bi", weights, m.a(x))))


def slope(m: Any, x: Tensor) -> Tensor:
    """A field that is the gradient of an energy, by a graph in the forward pass."""
    with torch.enable_grad():
        hidden = m.a(x) if x.requires_grad else m.a(x.detach().requires_grad_())
        energy = F.softplus(m.c(torch.tanh(hidden))).sum()
        (field,) = torch.autograd.grad(energy, hidden, create_graph=True)
    return m.head(torch.tanh(m.b(field + torch.tanh(hidden))))


def jacobian(m: Any, x: Tensor) -> Tensor:
    """A row's Jacobian under ``vmap``, and the norm of it beside the row."""
    hidden = m.a(x)
    jacobians = vmap(jacrev(lambda row: torch.tanh(row * m.scales) * row.sum()))(hidden)
    return m.b(torch.tanh(hidden + jacobians.diagonal(dim1=1, dim2=2)))


# Weights that are computed.


def layers(norm: Callable[[nn.Module], nn.Module], activation: Make = nn.ReLU) -> Make:
    """A perceptron of wines, the weights of whose hidden layers a norm computes."""
    return chain(a=lambda: norm(nn.Linear(13, 16)), act1=activation, b=lambda: norm(nn.Linear(16, 16)),
                 act2=nn.Softplus, head=linear(16, 3))  # fmt: skip


def convolutions(norm: Callable[[nn.Module], nn.Module], activation: Make = nn.ReLU) -> Make:
    """The same of convolutions of digits."""
    return chain(a=lambda: norm(nn.Conv2d(1, 6, 3)), act1=activation, b=lambda: norm(nn.Conv2d(6, 6, 3, stride=2)),
                 act2=nn.Softplus, flat=nn.Flatten, head=linear(24, 10))  # fmt: skip


class Symmetric(nn.Module):
    """Weights as a symmetric matrix."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).transpose(-1, -2)


class Standardized(nn.Module):
    """Weights whose means are 0 and whose deviations are 1, for each unit."""

    def forward(self, weight: Tensor) -> Tensor:
        flat = weight.flatten(1)
        shape = (-1, *[1] * (weight.ndim - 1))
        return (weight - flat.mean(1).reshape(shape)) / (flat.std(1).reshape(shape) + 1e-3)


def parametrized(layer: nn.Module, *computed: nn.Module) -> nn.Module:
    """``layer`` with weights that modules compute, one after the other."""
    for each in computed:
        parametrize.register_parametrization(layer, "weight", each)
    return layer


def symmetric(m: Any, x: Tensor) -> Tensor:
    """A layer in the middle whose matrix is symmetric."""
    return m.b(torch.tanh(m.c(torch.tanh(m.a(x)))))


def _pruned(layer: nn.Module) -> nn.Module:
    return prune.l1_unstructured(layer, "weight", amount=0.5)


def _quietly(norm: Callable[[Any], Any]) -> Callable[[nn.Module], nn.Module]:
    """``norm`` without PyTorch's warning that it is the older of two."""

    def normed(layer: nn.Module) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: nn.Module = norm(layer)
        return found

    return normed


# Few bits.


def steps(m: Any, x: Tensor) -> Tensor:
    """Weights and values are rounded to steps, as in training for eight bits; gradients pass where nothing clips."""
    hidden = torch.fake_quantize_per_tensor_affine(m.a(x), 0.05, 0, -128, 127)
    weight = torch.fake_quantize_per_channel_affine(m.b.weight, m.scales, m.zeros, 0, -128, 127)
    return F.linear(torch.tanh(hidden), weight, m.b.bias)


class Stubbed(nn.Module):
    """Becomes integers between two stubs."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = quantization.QuantStub(), quantization.DeQuantStub()
        self.a, self.act, self.b, self.head = nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.leave(self.b(self.act(self.a(self.enter(x))))))


def aware(ranges: quantization.QConfig) -> nn.Module:
    """Ready to be converted to eight bits: fake quantisation of weights and values, whose ranges were seen."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch moves it to another package
        model = Stubbed().train()
        model.qconfig = ranges  # type: ignore[assignment]
        quantization.prepare_qat(model, inplace=True)
        model(data.wine().inputs["x"])
        return model.apply(quantization.disable_observer).eval()


# Autocast.


def coarse(m: Any, x: Tensor) -> Tensor:
    """The whole network under autocast, which returns bfloat16."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return m.head(m.act2(m.b(m.act(m.a(x)))))


def coarse_attention(m: Any, x: Tensor) -> Tensor:
    """Attention under autocast, with a norm that autocast leaves in float32."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = m.a(x)
        queries, keys, values = m.qkv(hidden).chunk(3, 2)
        found = F.scaled_dot_product_attention(queries, keys, values)
    return m.b(m.norm(hidden.float() + found.float()).mean(1))


def without_autocast(m: Any, x: Tensor) -> Tensor:
    """Coarse, but for a part that switches autocast off."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = m.a(x)
        with torch.autocast("cpu", enabled=False):
            hidden = torch.tanh(m.c(hidden.float()))
        return m.b(hidden).float()


def _wine(name: str, make: Make, places: Places = PLACES, lacks: tuple[str, ...] = BY_MODULES, **more: Any) -> Healthy:
    return Healthy(name, make, data.wine, places, lacks, **more)


def _scales(*shape: int) -> Callable[[], Any]:
    return lambda: nn.Parameter(torch.rand(*shape) + 0.5)


PARTS = {"a": linear(13, 16), "b": linear(16, 3)}
DEEP = {**PARTS, "b": linear(16, 16), "head": linear(16, 3)}
INNER = chain(first=linear(16, 16), act=nn.Tanh, last=linear(16, 16))

FUNCTIONAL = (
    _wine("functional-call", joined(called_functionally, **PARTS, inner=INNER)),
    _wine("vmap-rows", joined(row_by_row, **PARTS)),
    _wine("vmap-modules", joined(row_by_row_in_modules, **DEEP, c=linear(16, 16)), BEHIND),
    _wine("vmap-columns", joined(over_columns, **PARTS, scales=_scales(16)), dtype=torch.float64),
    _wine("vmap-ensemble", joined(ensemble, **PARTS, one=INNER, two=INNER, three=INNER)),
    _wine("vmap-jacobian", joined(jacobian, **PARTS, scales=_scales(16))),
    _wine("hypernetwork", joined(hypernetwork, a=linear(13, 4), c=linear(13, 16), b=linear(4, 3))),
    _wine("gradient-of-energy", joined(slope, **DEEP, c=linear(16, 1)), BEHIND),
    _wine("weight-norm-by-hooks", layers(_quietly(old_weight_norm)), PASSED, ()),
    Healthy("weight-norm-of-convolutions-by-hooks", convolutions(_quietly(old_weight_norm), nn.ELU), data.images,
        MAPS, (*GUIDED, *LRP)),
    Healthy("weight-norm-of-convolutions", convolutions(parametrizations.weight_norm), data.images, MAPS, LRP),
    _wine("spectral-norm-by-hooks", layers(_quietly(old_spectral_norm)), PASSED, ()),
    _wine("orthogonal", layers(parametrizations.orthogonal, nn.Tanh), BEHIND, (*GUIDED, *LRP)),
    _wine("symmetric", joined(symmetric, **PARTS, c=lambda: parametrized(nn.Linear(16, 16), Symmetric()))),
    Healthy("standardized-weights", convolutions(lambda layer: parametrized(layer, Standardized())), data.images, MAPS,
        LRP),
    _wine("two-parametrizations", layers(lambda layer: parametrizations.spectral_norm(parametrized(layer,
        Standardized()))), BEHIND, LRP),
    _wine("pruned", layers(_pruned), PASSED, ()),
    _wine("fake-quantised", joined(steps, **PARTS, scales=lambda: nn.Parameter(torch.full((3,), 0.02), False),
        zeros=lambda: nn.Parameter(torch.zeros(3), False)), lacks=BY_MODULES),
    _wine("quantisation-aware", lambda: aware(quantization.default_qat_qconfig), loss=None),
    _wine("quantisation-aware-fused", lambda: aware(quantization.get_default_qat_qconfig("x86")), loss=None),
    _wine("autocast-whole", joined(coarse, **DEEP, act=nn.ReLU, act2=nn.Softplus), BEHIND, LRP),
    Healthy("autocast-attention", joined(coarse_attention, a=linear(3, 8), qkv=linear(8, 24),
        norm=lambda: nn.LayerNorm(8), b=linear(8, 3)), data.series, Places("a", "a", ca.Neuron("a", (2, 1))),
        BY_MODULES),
    _wine("autocast-in-part", joined(without_autocast, **PARTS, c=linear(16, 16))),
)  # fmt: skip
"""Models of wines and digits, and of series."""
