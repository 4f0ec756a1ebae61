"""A model that ends its process, never ends, takes its time, or much memory, when it is asked to."""

import os
import re
import time

import torch
from torch import nn

from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec

DEADLY = 99.0
SLOW = 50.0
ENDLESS = 60.0
FROZEN = 61.0
HUNGRY = 70.0
LAYERED = 80.0


class Layer(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.1)
        return x * 1


class Fragile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(3, 100_000)  # 400 kB a row
        self.linear = nn.Linear(3, 2)
        self.layer = Layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x == DEADLY).any()):
            os._exit(1)
        while bool((x == ENDLESS).any()):
            pass
        if bool((x == FROZEN).any()):
            re.match("(a+)+b", "a" * 64)  # for years, and no other thread of Python's runs meanwhile
        if bool((x == SLOW).any()):
            time.sleep(1)
        if bool((x == LAYERED).any()):
            for _ in range(1000):
                x = self.layer(x)
        if bool((x == HUNGRY).any()):
            torch.ones(1 << 30)  # 4 GiB
        self.wide(x)
        return self.linear(x)


class FragileAdapter(Adapter):
    """Three numbers to two."""

    inputs = (InputSpec("x", "float32", (-1, 3)),)

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return Fragile()
