"""A model too small to take time, and two that do not load."""

import os

import torch
from torch import nn

from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Tiny(Adapter):
    """Three numbers to two."""

    inputs = (InputSpec("x", "float32", (-1, 3)),)

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return Layer()


class Broken(Adapter):
    """Does what an owner's code does on a bad day."""

    def build(self) -> nn.Module:
        raise FileNotFoundError("the weights went missing")


class Crashing(Adapter):
    """Takes its process down with it."""

    def build(self) -> nn.Module:
        os._exit(3)


class Compiled(Tiny):
    """Hooks never fire on it."""

    def build(self) -> nn.Module:
        return torch.compile(super().build())  # type: ignore[return-value]


class Scripted(Tiny):
    """It takes no hooks."""

    def build(self) -> nn.Module:
        return torch.jit.script(super().build())


class Quantised(Tiny):
    """It has no gradients."""

    def build(self) -> nn.Module:
        return torch.ao.quantization.quantize_dynamic(nn.Sequential(super().build()))
