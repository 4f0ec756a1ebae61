"""Models for tests of path methods and of methods that override rectifiers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.checked_attributions import Build, noise, wired


def end(m: Any, h: Tensor) -> Tensor:
    return m.head(h.mean((2, 3)))


def net(wiring: Callable[..., Any], **parts: Callable[[], Any]) -> Build:
    """Two convolutions that return the same shape, a head, and whatever rectifiers."""
    convolutions = {"a": lambda: nn.Conv2d(3, 8, 3, padding=1), "b": lambda: nn.Conv2d(8, 8, 3, padding=1)}
    return wired(wiring, **convolutions, head=lambda: nn.Linear(8, 3), **parts)


def gained(m: Any, x: Tensor, gain: Tensor) -> Tensor:
    return end(m, m.r2(m.b(m.r1(m.a(x)) * gain.reshape(-1, 1, 1, 1))))


MODULES = net(lambda m, x: end(m, m.r2(m.b(m.r1(m.a(x))))), r1=nn.ReLU, r2=nn.ReLU)


TWO_INPUTS = net(gained, r1=nn.ReLU, r2=nn.ReLU)


def given(build: Build, rows: int, dtype: torch.dtype) -> dict[str, Tensor]:
    images = {"x": noise(rows, 3, 8, 8, dtype=dtype)}
    return {**images, "gain": noise(rows, dtype=dtype) + 2} if build is TWO_INPUTS else images
