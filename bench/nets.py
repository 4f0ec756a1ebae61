"""Networks that both our environment and a peer's build from the same seed; imports only torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LAYERS = 12


class Mlp(nn.Module):
    """Twelve blocks of Linear and ReLU of width ``width``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(LAYERS))

    def forward(self, features: Tensor) -> Tensor:
        """Maps [batch, width] to [batch, width]."""
        for layer in self.layers:
            features = layer(features)
        return features


def batch(rows: int, width: int) -> Tensor:
    """Returns a random input batch [rows, width]."""
    torch.manual_seed(1)
    return torch.randn(rows, width)
