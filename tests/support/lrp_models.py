"""Models for tests of layer-wise relevance propagation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cutaway.contract.requests import Epsilon
from tests.support.checked_attributions import Build, noise, wired


def linear(inputs: int = 6, outputs: int = 6, bias: bool = True) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(inputs, outputs, bias=bias)


def net(wiring: Callable[..., Any], **parts: Callable[[], Any]) -> Build:
    """Three layers, a head of three classes, and whatever else."""
    return wired(wiring, a=linear(), b=linear(), c=linear(), head=linear(6, 3), **parts)


SEQUENCE = net(lambda m, x: m.head(m.t(m.b(m.d(m.r(m.a(x)))))), r=nn.ReLU, t=nn.Tanh, d=nn.Dropout)


FLAT = {"flat": Epsilon()}


IMAGES = ("convolutions", "a rule on a module without weights, and a layer without bias")
"""The models of images; the others take vectors."""


def given(name: str, rows: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    shape = (3, 8, 8) if name in IMAGES else (6,)
    inputs = {"x": noise(rows, *shape, dtype=dtype)}
    return {**inputs, "y": noise(rows, 6, dtype=dtype, seed=2)} if name == "two inputs" else inputs
