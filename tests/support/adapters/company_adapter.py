"""Two models with an example: one keeps its rows apart, one does not."""

import torch
from torch import nn

from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec


class Same(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(dim=0)


class Apart(Adapter):
    """Each row by itself."""

    inputs = (InputSpec("x", "float32", (-1, 3)),)

    def build(self) -> nn.Module:
        return Same()


class Together(Apart):
    """Each row beside the mean of all."""

    def build(self) -> nn.Module:
        return Centred()
