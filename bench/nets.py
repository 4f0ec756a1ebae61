"""Networks that ours and a peer's environment both build, from the same seed: torch, and nothing of ours."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LAYERS = 12


class Mlp(nn.Module):
    """Twelve times linear and ReLU, ``width`` wide."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(LAYERS))

    def forward(self, features: Tensor) -> Tensor:
        """[batch, width] to [batch, width]."""
        for layer in self.layers:
            features = layer(features)
        return features


def batch(rows: int, width: int) -> Tensor:
    """Its input."""
    torch.manual_seed(1)
    return torch.randn(rows, width)
