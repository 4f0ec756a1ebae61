"""Three handwritten digits, and everything that is to be seen of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

import cutaway as ca
from cutaway.contract.requests import PointName
from examples.digits.data import held_out
from tests.support.mixed.by_hand import Answer, ByHand

ROWS = 3
POINTS: tuple[PointName, ...] = ("input", "output", "grad_input", "grad_output")
MODULES = ("relu1", "conv2", "fc1")


def inputs() -> dict[str, Tensor]:
    """Three handwritten digits."""
    return {"image": torch.from_numpy(held_out().images[:ROWS].copy())}


def noise(*shape: int) -> np.ndarray:
    """Seeded, float32."""
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def see_all(hand: ByHand) -> Answer:
    """All points of some modules, and the gradient at the image."""
    for module in MODULES:
        hand.see(module, *POINTS)
    hand.gradients("image")
    return hand.answer()


def asking(**asked: Any) -> dict[str, Any]:
    """The request for what `see_all` sees, with whatever else is asked."""
    return {"captures": [ca.Capture(module, at=POINTS) for module in MODULES], "input_gradients": True, **asked}
