"""Networks that read one step after another."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class WordLSTM(nn.Module):
    """Token ids [batch, tokens] to three logits, through an LSTM that reads both ways and returns a nested tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 5, padding_idx=0)
        self.lstm = nn.LSTM(5, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(24, 3)

    def forward(self, ids: Tensor) -> Tensor:
        out, (hidden, cell) = self.lstm(self.words(ids))
        return self.head(self.drop(torch.cat([out.mean(1), hidden[-1], hidden[-2], cell[-1], cell[0]], 1)))


class SignalGRU(nn.Module):
    """Signals [batch, steps, 3] of several lengths to three logits: a packed GRU, then a cell that is called once a
    step."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 4, batch_first=True)
        self.cell = nn.GRUCell(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, signal: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        packed = pack_padded_sequence(signal, lengths, batch_first=True, enforce_sorted=False)
        out, last = self.gru(packed)
        steps, _ = pad_packed_sequence(out, batch_first=True)
        state = last[0]
        for step in steps.unbind(1):
            state = self.cell(step, state)
        return self.head(state), state
