"""Networks on signals and token ids: convolutions, recurrence, attention, frequencies, embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from tests.matrix.asking import PLACES, Places
from tests.matrix.healthy_models import data
from tests.matrix.healthy_models.model import BY_MODULES, LRP, Healthy
from tests.matrix.healthy_models.parts import Make, chain, joined, linear
from tests.support.zoo.sequence import WordLSTM

SIGNAL = Places("b", "b", ca.Neuron("b", (1, 3)))
STATES = Places("a", "a", ca.Neuron("a", (2, 1)))
WORDS = Places("words", "words", ca.Neuron("b", (1,)), "words")
"""Token ids: perturbed, and explained at their embedding."""


def conv(inward: int, outward: int, size: int = 3, **more: Any) -> Make:
    """A convolution of a signal."""
    return lambda: nn.Conv1d(inward, outward, size, **more)


def recurrent(kind: Callable[..., nn.Module], width: int = 6, **more: Any) -> Make:
    """A recurrent network behind a linear layer; its last step and its mean are read."""

    def wiring(m: Any, x: Tensor) -> Tensor:
        out, _ = m.cells(m.a(x))
        return m.b(torch.cat([out[:, -1], out.mean(1)], 1))

    ways = 2 if more.get("bidirectional") else 1
    return joined(wiring, a=linear(3, 4), cells=lambda: kind(4, width, batch_first=True, **more),
                  b=linear(2 * ways * width, 3))  # fmt: skip


def stepwise(m: Any, x: Tensor) -> Tensor:
    """A cell that is called once for each step."""
    state = torch.zeros(len(x), 6, dtype=x.dtype)
    for step in m.a(x).unbind(1):
        state = m.cell(step, state)
    return m.b(state)


def causal(m: Any, x: Tensor) -> Tensor:
    """Convolutions that see the past only, as in WaveNet: a tanh times a gate, and skips."""
    hidden = m.a(x)
    past = F.pad(hidden, (4, 0))
    hidden = hidden + m.b(torch.tanh(m.filter(past)) * torch.sigmoid(m.gate(past)))
    return m.head(F.gelu(hidden).mean(2))


def attending(m: Any, x: Tensor) -> Tensor:
    """PyTorch's own attention, beside a shortcut."""
    hidden = m.a(x)
    found, _ = m.attention(hidden, hidden, hidden, need_weights=False)
    return m.b(m.norm(hidden + found).mean(1))


def scaled_attention(m: Any, x: Tensor) -> Tensor:
    """Attention by its function; each step sees the past."""
    queries, keys, values = (part.unflatten(2, (2, 4)).transpose(1, 2) for part in m.qkv(m.a(x)).chunk(3, 2))
    found = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    return m.b(found.transpose(1, 2).flatten(2)[:, -1])


def spelled_attention(m: Any, x: Tensor) -> Tensor:
    """Attention, spelled out; rotated queries and keys."""
    queries, keys, values = m.qkv(m.a(x)).chunk(3, 2)
    angles = torch.arange(x.shape[1], dtype=x.dtype).unsqueeze(1) / 4
    turned = [part * angles.cos() + part.flip(2) * angles.sin() for part in (queries, keys)]
    scores = torch.einsum("bqd,bkd->bqk", *turned) / 8**0.5
    return m.b((scores.softmax(2) @ values).mean(1))


def pooled_attention(m: Any, x: Tensor) -> Tensor:
    """Steps are averaged, each as much as a learned query likes it."""
    hidden = torch.tanh(m.a(x))
    return m.b((m.query(hidden).softmax(1) * hidden).sum(1))


def frequencies(m: Any, x: Tensor) -> Tensor:
    """Mixes steps and channels by a Fourier transform, as FNet does."""
    hidden = m.a(x)
    return m.b(m.norm(hidden + torch.fft.fft2(hidden).real / 4).mean(1))


def spectrum(m: Any, x: Tensor) -> Tensor:
    """The logarithm of a signal's power, frequency by frequency."""
    power = torch.fft.rfft(m.a(x), dim=2).abs().pow(2)
    return m.head(torch.tanh(m.b(torch.log1p(power).flatten(1))))


def state_space(m: Any, x: Tensor) -> Tensor:
    """A linear recurrence, by powers of its decay and a running sum."""
    steps = torch.arange(x.shape[1], dtype=x.dtype).reshape(-1, 1)
    decay = torch.sigmoid(m.decay) * 0.5 + 0.5
    states = (m.a(x) * decay ** (-steps)).cumsum(1) * decay**steps
    return m.b(F.silu(m.gate(x)).mul(states).mean(1))


def words(m: Any, ids: Tensor) -> Tensor:
    """The mean of embeddings, without padding."""
    there = (ids != 0).to(m.b.weight.dtype).unsqueeze(2)
    return m.head(torch.tanh(m.b((m.words(ids) * there).sum(1) / there.sum(1).clamp(min=1))))


def attend_words(m: Any, ids: Tensor) -> Tensor:
    """A transformer over embeddings and positions, in which padding is masked."""
    places = m.places(torch.arange(ids.shape[1]))
    return m.head(m.b(m.layer(m.words(ids) + places, src_key_padding_mask=ids == 0)[:, 0]).tanh())


def convolve_words(m: Any, ids: Tensor) -> Tensor:
    """Convolutions of two sizes over embeddings, and their maxima."""
    vectors = m.words(ids).transpose(1, 2)
    return m.head(torch.tanh(m.b(torch.cat([m.two(vectors).amax(2), m.three(vectors).amax(2)], 1))))


def _encoder(**more: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0, **more)


EMBEDDING = {"words": lambda: nn.Embedding(20, 6), "b": linear(6, 8), "head": linear(8, 3)}


def _series(name: str, make: Make, **more: Any) -> Healthy:
    """A model of short series."""
    return Healthy(name, make, data.series, STATES, BY_MODULES, **more)


SEQUENCES = (
    Healthy("cnn-signals", chain(a=conv(3, 8), act1=nn.ReLU, b=conv(8, 6, stride=2), act2=nn.ReLU, flat=nn.Flatten,
        head=linear(36, 3)), data.waves, SIGNAL, LRP),
    Healthy("cnn-signals-max", chain(a=conv(3, 8), act1=nn.GELU, pool=lambda: nn.MaxPool1d(2), b=conv(8, 6),
        act2=nn.GELU, flat=nn.Flatten, head=linear(30, 3)), data.waves, SIGNAL, BY_MODULES),
    Healthy("cnn-signals-norm", chain(a=conv(3, 8), norm1=lambda: nn.BatchNorm1d(8), act1=nn.Softplus,
        b=conv(8, 6, dilation=2), norm2=lambda: nn.InstanceNorm1d(6, affine=True), act2=nn.Softplus, flat=nn.Flatten,
        head=linear(60, 3)), data.waves, Places("b", "act2", ca.Neuron("b", (1, 3))), BY_MODULES),
    Healthy("wavenet", joined(causal, a=conv(3, 6, 1), filter=conv(6, 6, dilation=2), gate=conv(6, 6, dilation=2),
        b=conv(6, 6, 1), head=linear(6, 3)), data.waves, SIGNAL, BY_MODULES),
    Healthy("power-spectrum", joined(spectrum, a=conv(3, 3, 1), b=linear(27, 8), head=linear(8, 3)), data.waves,
        Places("b", "a", ca.Neuron("b", (1,))), BY_MODULES),
    _series("rnn", recurrent(nn.RNN)),
    _series("rnn-relu", recurrent(nn.RNN, nonlinearity="relu")),
    _series("lstm", recurrent(nn.LSTM)),
    _series("lstm-both-ways", recurrent(nn.LSTM, 4, bidirectional=True)),
    _series("lstm-of-two-layers", recurrent(nn.LSTM, 4, num_layers=2), dtype=torch.float64),
    _series("gru", recurrent(nn.GRU)),
    _series("gru-both-ways", recurrent(nn.GRU, 4, bidirectional=True)),
    _series("lstm-untrained", recurrent(nn.LSTM), loss=None),
    _series("gru-cell", joined(stepwise, a=linear(3, 4), cell=lambda: nn.GRUCell(4, 6), b=linear(6, 3))),
    _series("attention", joined(attending, a=linear(3, 8), norm=lambda: nn.LayerNorm(8), b=linear(8, 3),
        attention=lambda: nn.MultiheadAttention(8, 2, batch_first=True))),
    _series("attention-function", joined(scaled_attention, a=linear(3, 8), qkv=linear(8, 24), b=linear(8, 3))),
    _series("attention-spelled", joined(spelled_attention, a=linear(3, 8), qkv=linear(8, 24), b=linear(8, 3))),
    _series("attention-pool", joined(pooled_attention, a=linear(3, 8), query=linear(8, 1), b=linear(8, 3))),
    _series("transformer", joined(lambda m, x: m.b(m.layer(m.a(x)).mean(1)), a=linear(3, 8), layer=_encoder,
        b=linear(8, 3))),
    _series("transformer-norm-first", joined(lambda m, x: m.b(m.layer(m.a(x))[:, 0]), a=linear(3, 8),
        layer=lambda: _encoder(norm_first=True, activation="gelu"), b=linear(8, 3)), dtype=torch.float64),
    _series("transformer-of-three-layers", joined(lambda m, x: m.b(m.three(m.two(m.one(m.a(x)))).mean(1)),
        a=linear(3, 8), one=_encoder, two=_encoder, three=_encoder, b=linear(8, 3))),
    _series("fnet", joined(frequencies, a=linear(3, 8), norm=lambda: nn.LayerNorm(8), b=linear(8, 3))),
    _series("state-space", joined(state_space, a=linear(3, 8), gate=linear(3, 8), b=linear(8, 3),
        decay=lambda: nn.Parameter(torch.randn(8)))),
    Healthy("words-mean", joined(words, **EMBEDDING), data.sentences, WORDS),
    Healthy("words-bag", chain(words=lambda: nn.EmbeddingBag(20, 6), b=linear(6, 8), act=nn.Tanh, head=linear(8, 3)),
        data.sentences, Places("b", "b", ca.Neuron("b", (1,)))),
    Healthy("words-lstm", WordLSTM, data.sentences, PLACES["lstm"]),
    Healthy("words-transformer", joined(attend_words, words=lambda: nn.Embedding(20, 8),
        places=lambda: nn.Embedding(6, 8), layer=_encoder, b=linear(8, 8), head=linear(8, 3)), data.sentences, WORDS),
    Healthy("words-convolution", joined(convolve_words, **EMBEDDING | {"b": linear(10, 8)}, two=conv(6, 5, 2),
        three=conv(6, 5)), data.sentences, WORDS),
    Healthy("words-untrained", joined(words, **EMBEDDING), data.sentences, WORDS, loss=None),
)  # fmt: skip
"""Models of signals [batch, channels, steps] or [batch, steps, channels], and of token ids."""
