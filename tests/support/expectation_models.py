"""Models for tests of methods that draw baselines."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tests.support.checked_attributions import wired

GAINED = wired(
    lambda m, x, y, gain: m.head(torch.relu(m.a(x)) * m.b(y).sigmoid() * gain.unsqueeze(1)),
    a=lambda: nn.Linear(4, 6), b=lambda: nn.Linear(3, 6), head=lambda: nn.Linear(6, 3),
)  # fmt: skip


IN_PLACE = wired(
    lambda m, x: m.head(m.r(m.b(m.r(m.a(x))))),
    a=lambda: nn.Linear(8, 6), b=lambda: nn.Linear(6, 6), r=lambda: nn.ReLU(inplace=True), head=lambda: nn.Linear(6, 3),
)  # fmt: skip


TWICE = wired(
    lambda m, x: m.head(torch.tanh(m.b(torch.tanh(m.b(m.a(x)))))),
    a=lambda: nn.Linear(8, 6), b=lambda: nn.Linear(6, 6), head=lambda: nn.Linear(6, 3),
)  # fmt: skip


def numbers() -> tuple[bytes, ...]:
    """Where the generators of the process stand."""
    return (torch.get_rng_state().numpy().tobytes(), np.random.get_state(legacy=False)["state"]["key"].tobytes())
