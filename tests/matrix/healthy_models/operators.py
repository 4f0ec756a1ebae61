"""Networks with operators of their own: autograd Functions in every idiom, complex numbers, experts for tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import cutaway as ca
from tests.matrix.asking import Places
from tests.matrix.healthy_models import data
from tests.matrix.healthy_models.model import BY_MODULES, Healthy
from tests.matrix.healthy_models.parts import Cube, Make, Swish, joined, linear

PLACES = Places("a", "a", ca.Neuron("a", (1,)))
STATES = Places("a", "a", ca.Neuron("a", (2, 1)))


# Functions.


class Product(torch.autograd.Function):
    """The product of two tensors, and the tanh of one of them: two inputs, two outputs."""

    @staticmethod
    def forward(ctx: Any, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        curved = one.tanh()
        ctx.save_for_backward(one, other, curved)
        return one * other, curved

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        one, other, curved = ctx.saved_tensors
        return gradients[0] * other + gradients[1] * (1 - curved**2), gradients[0] * one


class Scaled(torch.autograd.Function):
    """The sine of a multiple that is a plain number; nothing arrives at an input that needs no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.factor = factor
        return torch.sin(factor * x) * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        at_x = gradients[0] * weight * ctx.factor * torch.cos(ctx.factor * x) if ctx.needs_input_grad[0] else None
        at_weight = (gradients[0] * torch.sin(ctx.factor * x)).sum(0) if ctx.needs_input_grad[1] else None
        return at_x, at_weight, None


class InPlace(torch.autograd.Function):
    """A tanh that overwrites its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.tanh_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * (1 - ctx.saved_tensors[0] ** 2)


class Mapped(torch.autograd.Function):
    """The logarithm of one plus a square, whose rule for ``vmap`` PyTorch generates."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.log1p(x * x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * 2 * x / (1 + x * x)


class Forward(torch.autograd.Function):
    """The exponential of a negative square, with a derivative for forward mode too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        found = torch.exp(-x * x)
        ctx.save_for_backward(x, found)
        ctx.save_for_forward(x, found)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        x, found = ctx.saved_tensors
        return -2 * x * found * gradients[0]

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        x, found = ctx.saved_tensors
        return -2 * x * found * tangents[0]


class Norm(torch.autograd.Function):
    """Layer norm, spelled out, as kernels of one's own are wrapped; what it needs is kept as attributes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        mean, spread = x.mean(-1, keepdim=True), (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        normed = (x - mean) / spread
        ctx.save_for_backward(weight)
        ctx.normed, ctx.spread = normed, spread
        return normed * weight + bias

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (weight,) = ctx.saved_tensors
        inner = gradients[0] * weight
        centred = inner - inner.mean(-1, keepdim=True) - ctx.normed * (inner * ctx.normed).mean(-1, keepdim=True)
        return centred / ctx.spread, (gradients[0] * ctx.normed).sum(0), gradients[0].sum(0)


swish = Swish.apply
"""Bound when the module is imported, as PyTorch's documentation does it."""

STEPS: list[Callable[..., Any]] = [Cube.apply, torch.tanh, Mapped.apply]
BY_NAME: dict[str, Callable[..., Any]] = {"swish": Swish.apply, "forward": Forward.apply}


def swished(x: Tensor) -> Tensor:
    """A function around a function."""
    return swish(x)


class Activation(nn.Module):
    """A module that keeps the bound method."""

    def __init__(self) -> None:
        super().__init__()
        self.call = Forward.apply

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x)


def in_list(m: Any, x: Tensor) -> Tensor:
    """Functions in a list, one after the other."""
    hidden = m.a(x) / 4
    for step in STEPS:
        hidden = step(hidden)
    return m.b(hidden)


def paired(m: Any, x: Tensor) -> Tensor:
    """Two inputs and two outputs."""
    product, curved = Product.apply(m.a(x), m.c(x))
    return m.b(product + curved)


def chained(m: Any, x: Tensor) -> Tensor:
    """Several functions behind each other."""
    hidden = m.a(x)
    return m.b(Swish.apply(m.c(BY_NAME["forward"](hidden))) + BY_NAME["swish"](hidden))


# Complex numbers.


def complex_layers(m: Any, x: Tensor) -> Tensor:
    """Complex weights, and a gate by the magnitude."""
    hidden = torch.complex(m.a(x), m.c(x)) @ m.weights
    hidden = hidden * torch.sigmoid(hidden.abs())
    return m.b(torch.cat([hidden.real, hidden.imag], 1))


def filtered(m: Any, x: Tensor) -> Tensor:
    """A convolution of a series by its frequencies."""
    spectrum = torch.fft.rfft(m.a(x), dim=1) * torch.view_as_complex(m.filter)
    return m.b(torch.tanh(torch.fft.irfft(spectrum, n=x.shape[1], dim=1)).mean(1))


def fourier_operator(m: Any, x: Tensor) -> Tensor:
    """A Fourier neural operator: complex weights mix the channels of the lowest frequencies, beside a linear layer."""
    hidden = m.a(x)
    low = torch.einsum("bfi,fio->bfo", torch.fft.rfft(hidden, dim=1)[:, :3], m.weights)
    mixed = torch.fft.irfft(F.pad(low, (0, 0, 0, 2)), n=x.shape[1], dim=1)
    return m.b(F.gelu(mixed + m.c(hidden)).mean(1))


def spectrogram(m: Any, x: Tensor) -> Tensor:
    """The power of windows of a signal."""
    windows = torch.stft(m.a(x).transpose(1, 2).flatten(0, 1), 8, 4, window=torch.hann_window(8, dtype=x.dtype),
        return_complex=True)  # fmt: skip
    power = windows.abs().square().reshape(len(x), -1)
    return m.b(torch.log1p(power))


def rotated(m: Any, x: Tensor) -> Tensor:
    """Rotary positions as complex numbers, as LLaMA has them."""
    queries, keys, values = m.qkv(m.a(x)).chunk(3, 2)
    angles = torch.outer(torch.arange(x.shape[1], dtype=x.dtype), torch.tensor([1.0, 0.1, 0.01, 0.001], dtype=x.dtype))
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = [torch.view_as_complex(part.unflatten(2, (4, 2)).contiguous()) for part in (queries, keys)]
    turned_queries, turned_keys = (torch.view_as_real(pair * turns).flatten(2) for pair in pairs)
    return m.b(F.scaled_dot_product_attention(turned_queries, turned_keys, values).mean(1))


# Experts for tokens.


def best_experts(m: Any, x: Tensor) -> Tensor:
    """Tokens of all rows on one axis, [batch * steps, units]; each goes to the best of three experts."""
    tokens = m.a(x).flatten(0, 1)
    shares, chosen = m.router(tokens).softmax(1).max(1)
    out = torch.zeros_like(tokens)
    for number, expert in enumerate((m.one, m.two, m.three)):
        rows = torch.where(chosen == number)[0]
        out = out.index_add(0, rows, torch.tanh(expert(tokens[rows])) * shares[rows].unsqueeze(1))
    return m.b((tokens + out).unflatten(0, (len(x), -1)).mean(1))


def two_best_experts(m: Any, x: Tensor) -> Tensor:
    """Mixtral: each token is the mean of its two best experts, weighed by a softmax of those."""
    tokens = m.a(x).reshape(-1, 8)
    scores, chosen = m.router(tokens).topk(2, dim=1)
    shares = scores.softmax(1)
    out = torch.zeros_like(tokens)
    for number, expert in enumerate((m.one, m.two, m.three)):
        rows, places = torch.where(chosen == number)
        out = out.index_add(0, rows, torch.tanh(expert(tokens[rows])) * shares[rows, places].unsqueeze(1))
    return m.b((tokens + out).reshape(*x.shape[:2], 8).mean(1))


def stacked_experts(m: Any, x: Tensor) -> Tensor:
    """All experts of all tokens by one product, beside an expert that every token shares."""
    tokens = m.a(x).flatten(0, 1)
    answers = torch.tanh(torch.einsum("ti,eio->teo", tokens, m.weights))
    mixed = (answers * m.router(tokens).softmax(1).unsqueeze(2)).sum(1) + torch.tanh(m.one(tokens))
    return m.b(mixed.unflatten(0, (len(x), -1)).mean(1))


def soft_slots(m: Any, x: Tensor) -> Tensor:
    """Soft experts: each answers a mean of the row's tokens, and is handed back to them."""
    tokens = m.a(x)
    scores = m.router(tokens)
    slots = scores.softmax(1).transpose(1, 2) @ tokens
    answers = torch.stack([torch.tanh(e(slots[:, n])) for n, e in enumerate((m.one, m.two, m.three))], 1)
    return m.b((scores.softmax(2) @ answers).mean(1))


def _wine(name: str, wiring: Callable[..., Any], **parts: Callable[[], Any]) -> Healthy:
    return Healthy(name, joined(wiring, **LINEARS, **parts), data.wine, PLACES, BY_MODULES)


def _series(name: str, wiring: Callable[..., Any], **parts: Callable[[], Any]) -> Healthy:
    made = joined(wiring, **{"a": linear(3, 8), "b": linear(8, 3), **parts})
    return Healthy(name, made, data.series, STATES, BY_MODULES)


def _complex(*shape: int) -> Callable[[], Any]:
    return lambda: nn.Parameter(torch.randn(*shape, dtype=torch.complex64) / 3)


def _ones() -> Any:
    return nn.Parameter(torch.ones(16))


LINEARS: dict[str, Make] = {"a": linear(13, 16), "b": linear(16, 3)}
EXPERTS: dict[str, Make] = {"router": linear(8, 3), "one": linear(8, 8), "two": linear(8, 8), "three": linear(8, 8)}

OPERATORS = (
    _wine("function-bound", lambda m, x: m.b(swish(m.a(x)))),
    _wine("function-wrapped", lambda m, x: m.b(swished(m.a(x)))),
    _wine("function-in-list", in_list),
    _wine("function-of-module", lambda m, x: m.b(m.act(m.a(x))), act=Activation),
    _wine("function-of-two", paired, c=LINEARS["a"]),
    _wine("function-of-number", lambda m, x: m.b(Scaled.apply(m.a(x), m.weights, 0.7)), weights=_ones),
    _wine("function-in-place", lambda m, x: m.b(InPlace.apply(m.a(x) * 1.5))),
    _wine("function-under-vmap", lambda m, x: m.b(torch.vmap(Mapped.apply)(m.a(x)))),
    _wine("function-with-forward-mode", lambda m, x: m.b(Forward.apply(m.a(x)))),
    _wine("function-norm", lambda m, x: m.b(Norm.apply(torch.tanh(m.a(x)), m.weights, m.shift)), weights=_ones,
        shift=_ones),
    _wine("functions-chained", chained, c=linear(16, 16)),
    _wine("function-checkpointed", lambda m, x: m.b(checkpoint(lambda h: swish(m.c(h)), m.a(x), use_reentrant=False)),
        c=linear(16, 16)),
    _wine("function-checkpointed-older", lambda m, x: m.b(checkpoint(lambda h: swish(m.c(h)), m.a(x),
        use_reentrant=True)), c=linear(16, 16)),
    _wine("complex-layers", complex_layers, c=LINEARS["a"], weights=_complex(16, 8)),
    _series("complex-filter", filtered, filter=lambda: nn.Parameter(torch.randn(5, 8, 2) / 2)),
    _series("fourier-operator", fourier_operator, weights=_complex(3, 8, 8), c=linear(8, 8)),
    _series("spectrogram", spectrogram, b=linear(120, 3)),
    _series("rotary-positions", rotated, qkv=linear(8, 24)),
    _series("experts-of-tokens", best_experts, **EXPERTS),
    _series("experts-of-tokens-two-best", two_best_experts, **EXPERTS),
    _series("experts-of-tokens-stacked", stacked_experts, router=linear(8, 3), one=linear(8, 8),
        weights=lambda: nn.Parameter(torch.randn(3, 8, 8) / 3)),
    _series("experts-of-slots", soft_slots, **EXPERTS),
)  # fmt: skip
"""Models of wines and of series."""
