"""Models and inputs for tests of noise tunnels."""

from __future__ import annotations

from torch import nn

from tests.support.checked_attributions import noise, wired

ROW = {"x": noise(3, 8)}


TWO = {"x": noise(3, 4), "y": noise(3, 3, seed=2), "gain": noise(3, seed=3)}


MODULES = wired(
    lambda m, x: m.head(m.r2(m.b(m.r1(m.a(x))))),
    a=lambda: nn.Linear(8, 6), r1=nn.ReLU, b=lambda: nn.Linear(6, 6), r2=nn.ReLU, head=lambda: nn.Linear(6, 3),
)  # fmt: skip
