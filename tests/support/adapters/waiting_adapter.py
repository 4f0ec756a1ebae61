"""A model that takes as long as its input says, and multiplies by a number that tells its archives apart."""

import time

import torch
from torch import Tensor, nn

from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec

TICK_S = 0.2


class Tick(nn.Module):
    """A call of a module: behind it, a pass whose callers have gone can end."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(TICK_S)
        return x


class Factor(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Waiting(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.tick, self.times = Tick(), Factor(factor)

    def forward(self, x: Tensor, seconds: Tensor) -> Tensor:
        end = time.monotonic() + float(seconds.max())
        while time.monotonic() < end:
            x = self.tick(x)
        return self.times(x)


class WaitingAdapter(Adapter):
    """Its option ``factor`` is what it multiplies by; ``-1`` ends the process that loads it."""

    inputs = (InputSpec("x", "float32", (-1, 3)), InputSpec("seconds", "float32", (-1, 1)))

    def build(self) -> nn.Module:
        factor = float(self.options["factor"])
        if factor < 0:
            raise SystemExit("a bad day")
        return Waiting(factor)

    def example(self) -> dict[str, Tensor]:
        return {"x": torch.ones(1, 3), "seconds": torch.zeros(1, 1)}
