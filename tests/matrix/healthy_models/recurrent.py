"""Recurrent networks that run [steps, batch] inside, read packed sequences, or call a cell once for each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import cutaway as ca
from tests.matrix.asking import Places
from tests.matrix.healthy_models import data
from tests.matrix.healthy_models.model import BY_MODULES, Healthy
from tests.matrix.healthy_models.parts import Make, joined, linear

BEFORE = Places("a", "a", ca.Neuron("a", (2, 1)))
"""Looked into before the axes are exchanged, where rows come first."""

BEHIND = Places("b", "b", ca.Neuron("b", (1,)))
"""Looked into behind the recurrence."""

WORDS = BEHIND._replace(embedding="words")


def last_output(out: Tensor, _: Any) -> Tensor:
    """The output of the last step."""
    return out[-1]


def last_state(_: Tensor, state: Any) -> Tensor:
    """The last layer's hidden state, of [layers, batch, units]."""
    return (state[0] if isinstance(state, tuple) else state)[-1]


def all_states(_: Tensor, state: Any) -> Tensor:
    """The states of all layers and ways, beside each other."""
    hidden = state[0] if isinstance(state, tuple) else state
    return hidden.transpose(0, 1).flatten(1)


def mean_output(out: Tensor, _: Any) -> Tensor:
    """The mean over the steps, the first axis."""
    return out.mean(0)


def steps_first(kind: Callable[..., nn.Module], read: Callable[..., Tensor], width: int = 6, **more: Any) -> Make:
    """A recurrent network [steps, batch, units] of series [batch, steps, channels]."""

    def wiring(m: Any, x: Tensor) -> Tensor:
        return m.head(torch.tanh(m.b(read(*m.cells(m.a(x).transpose(0, 1))))))

    ways, layers = 2 if more.get("bidirectional") else 1, more.get("num_layers", 1)
    inward = width * ways * layers if read is all_states else width if read is last_state else width * ways
    return joined(wiring, a=linear(3, 4), cells=lambda: kind(4, width, **more), b=linear(inward, 6), head=linear(6, 3))


def classify_text(m: Any, ids: Tensor) -> Tensor:
    """The tutorials' text classifier: embeddings [steps, batch, units] and the last hidden state."""
    _, (hidden, _) = m.cells(m.words(ids.t()))
    return m.head(torch.tanh(m.b(hidden[-1])))


def classify_packed(m: Any, ids: Tensor) -> Tensor:
    """The same with rows of several lengths, packed."""
    lengths = (ids != 0).sum(1).clamp(min=1)
    packed = pack_padded_sequence(m.words(ids.t()), lengths, enforce_sorted=False)
    _, (hidden, _) = m.cells(packed)
    return m.head(torch.tanh(m.b(torch.cat([hidden[-2], hidden[-1]], 1))))


def unpack(m: Any, ids: Tensor) -> Tensor:
    """Packed, read, and padded again: the mean over the steps that are there, rows first."""
    lengths = (ids != 0).sum(1).clamp(min=1)
    out, _ = m.cells(pack_padded_sequence(m.words(ids), lengths, batch_first=True, enforce_sorted=False))
    steps, _ = pad_packed_sequence(out, batch_first=True, total_length=ids.shape[1])
    return m.head(torch.tanh(m.b(steps.sum(1) / lengths.unsqueeze(1))))


def pack_numbers(m: Any, x: Tensor) -> Tensor:
    """Series of numbers, all of one length, packed with rows first."""
    lengths = torch.full((len(x),), x.shape[1])
    _, hidden = m.cells(pack_padded_sequence(m.a(x), lengths, batch_first=True))
    return m.head(torch.tanh(m.b(hidden[-1])))


def translate(m: Any, x: Tensor) -> Tensor:
    """An encoder's last state begins a decoder, which attends to every step; all of it steps first."""
    steps, state = m.cells(m.a(x).transpose(0, 1))
    out, _ = m.decoder(steps.mean(0, keepdim=True), state)
    shares = (out * steps).sum(2).softmax(0).unsqueeze(2)
    return m.head(torch.tanh(m.b((shares * steps).sum(0))))


def attend_steps_first(m: Any, x: Tensor) -> Tensor:
    """A transformer's layer of [steps, batch, units]."""
    return m.head(torch.tanh(m.b(m.layer(m.a(x).transpose(0, 1)).mean(0))))


def attend_words_steps_first(m: Any, ids: Tensor) -> Tensor:
    """PyTorch's tutorial: permuted embeddings, positions, attention that masks what is padded."""
    vectors = m.words(ids).permute(1, 0, 2) + m.places
    found, _ = m.attention(vectors, vectors, vectors, key_padding_mask=ids == 0, need_weights=False)
    return m.head(torch.tanh(m.b((vectors + found)[0])))


def lstm_cell(m: Any, x: Tensor) -> Tensor:
    """A cell that is called once for each step."""
    state = (x.new_zeros(len(x), 6), x.new_zeros(len(x), 6))
    for step in m.a(x).unbind(1):
        state = m.cell(step, state)
    return m.head(torch.tanh(m.b(state[0])))


def stacked_cells(m: Any, x: Tensor) -> Tensor:
    """Two cells, one above the other."""
    low, high = x.new_zeros(len(x), 6), x.new_zeros(len(x), 6)
    for step in m.a(x).unbind(1):
        low = m.cell(step, low)
        high = m.above(low, high)
    return m.head(torch.tanh(m.b(high)))


def looped(m: Any, x: Tensor) -> Tensor:
    """A recurrence of linear layers, each called once for each step."""
    state = x.new_zeros(len(x), 6)
    for step in m.a(x).unbind(1):
        state = torch.tanh(m.from_step(step) + m.from_state(state))
    return m.head(torch.tanh(m.b(state)))


def looped_steps_first(m: Any, x: Tensor) -> Tensor:
    """The same over the first axis of [steps, batch, channels]; all states are kept."""
    state, states = x.new_zeros(len(x), 6), []
    for step in m.a(x).transpose(0, 1):
        state = torch.tanh(m.from_step(step) + m.from_state(state))
        states.append(state)
    return m.head(torch.tanh(m.b(torch.stack(states).mean(0))))


def gated_unit(m: Any, x: Tensor) -> Tensor:
    """A unit of its own, spelled out: an update gate beside a candidate, over the steps in reverse."""
    state = x.new_zeros(len(x), 6)
    for step in m.a(x).flip(1).unbind(1):
        both = torch.cat([step, state], 1)
        gate = torch.sigmoid(m.gate(both))
        state = gate * state + (1 - gate) * torch.tanh(m.candidate(both))
    return m.head(F.softplus(m.b(state)))


def repeated(m: Any, x: Tensor) -> Tensor:
    """One layer that is called four times, as ALBERT shares its weights."""
    hidden = m.a(x).mean(1)
    for _ in range(4):
        hidden = hidden + torch.tanh(m.shared(hidden))
    return m.head(torch.tanh(m.b(hidden)))


def repeated_attention(m: Any, x: Tensor) -> Tensor:
    """One transformer layer that is called twice, as in the universal transformer."""
    return m.head(torch.tanh(m.b(m.layer(m.layer(m.a(x))).mean(1))))


def tied(m: Any, ids: Tensor) -> Tensor:
    """The embedding's weights are also the output's: three of its rows are the classes."""
    hidden = torch.tanh(m.b(m.words(ids).mean(1)))
    return F.linear(hidden, m.words.weight[1:4])


def _series(name: str, make: Make, places: Places = BEHIND, **more: Any) -> Healthy:
    return Healthy(name, make, data.series, places, BY_MODULES, **more)


def _layer(**more: Any) -> Make:
    return lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, **more)


HEAD = {"b": linear(6, 6), "head": linear(6, 3)}
WIDE = {"a": linear(3, 8), "b": linear(8, 6), "head": linear(6, 3)}
TEXT = {"words": lambda: nn.Embedding(20, 6), **HEAD}

RECURRENT = (
    _series("steps-first-lstm", steps_first(nn.LSTM, last_output), BEFORE),
    _series("steps-first-gru", steps_first(nn.GRU, mean_output), BEFORE),
    _series("steps-first-rnn", steps_first(nn.RNN, last_output)),
    _series("steps-first-rnn-relu", steps_first(nn.RNN, mean_output, nonlinearity="relu")),
    _series("steps-first-lstm-state", steps_first(nn.LSTM, last_state), BEFORE),
    _series("steps-first-gru-of-two-layers", steps_first(nn.GRU, all_states, num_layers=2), dtype=torch.float64),
    _series("steps-first-lstm-both-ways", steps_first(nn.LSTM, all_states, 4, bidirectional=True)),
    Healthy("as-many-steps-as-rows", steps_first(nn.LSTM, last_state), data.short_series, BEFORE, BY_MODULES),
    Healthy("as-many-steps-as-rows-mean", steps_first(nn.GRU, mean_output), data.short_series, BEHIND, BY_MODULES),
    Healthy("text-classifier", joined(classify_text, **TEXT, cells=lambda: nn.LSTM(6, 6)), data.sentences, WORDS),
    Healthy("text-classifier-packed", joined(classify_packed, **TEXT | {"b": linear(8, 6)},
        cells=lambda: nn.LSTM(6, 4, bidirectional=True)), data.sentences, WORDS),
    Healthy("text-unpacked", joined(unpack, **TEXT, cells=lambda: nn.GRU(6, 6, batch_first=True)), data.sentences,
        WORDS),
    _series("packed-numbers", joined(pack_numbers, a=linear(3, 4), cells=lambda: nn.GRU(4, 6, batch_first=True),
        **HEAD), BEFORE),
    _series("encoder-decoder", joined(translate, a=linear(3, 4), cells=lambda: nn.GRU(4, 6),
        decoder=lambda: nn.GRU(6, 6), **HEAD), BEFORE),
    _series("steps-first-transformer", joined(attend_steps_first, **WIDE, layer=_layer()), BEFORE),
    Healthy("text-attention-steps-first", joined(attend_words_steps_first, **TEXT, places=lambda:
        nn.Parameter(torch.randn(6, 1, 6) / 4), attention=lambda: nn.MultiheadAttention(6, 2)), data.sentences, WORDS),
    _series("lstm-cell", joined(lstm_cell, a=linear(3, 4), cell=lambda: nn.LSTMCell(4, 6), **HEAD), BEFORE),
    _series("rnn-cells-stacked", joined(stacked_cells, a=linear(3, 4), cell=lambda: nn.RNNCell(4, 6),
        above=lambda: nn.GRUCell(6, 6), **HEAD)),
    _series("looped-linear", joined(looped, a=linear(3, 4), from_step=linear(4, 6), from_state=linear(6, 6), **HEAD),
        BEFORE),
    _series("looped-steps-first", joined(looped_steps_first, a=linear(3, 4), from_step=linear(4, 6),
        from_state=linear(6, 6), **HEAD)),
    _series("own-recurrent-unit", joined(gated_unit, a=linear(3, 4), gate=linear(10, 6), candidate=linear(10, 6),
        **HEAD), dtype=torch.float64),
    _series("shared-weights", joined(repeated, **WIDE, shared=linear(8, 8))),
    _series("shared-attention", joined(repeated_attention, **WIDE, layer=_layer(batch_first=True)), BEFORE),
    Healthy("tied-embedding", joined(tied, words=lambda: nn.Embedding(20, 6), b=linear(6, 6)), data.sentences, WORDS),
)  # fmt: skip
"""Models of series [batch, steps, channels] and of token ids [batch, steps]."""
