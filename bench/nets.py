"""Networks that both our environment and a peer's build alike, from a seed or from files; imports only torch."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

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


def digits(directory: Path) -> nn.Module:
    """Loads the digits network from the files that `bench.servers.Store.digits_files` wrote to ``directory``."""
    found: Any = spec_from_file_location("digits_net", directory / "digits_net.py")
    module = module_from_spec(found)
    found.loader.exec_module(module)
    network: nn.Module = module.DigitsCNN().eval()
    network.load_state_dict(torch.load(directory / "digits.pt"))
    return network
