"""A model whose passes wait until a test lets them go on."""

from __future__ import annotations

import threading

import torch
from torch import Tensor, nn

from tests.support.waiting import PATIENCE_S


class Door:
    """What passes of a model go through: each waits for its turn.

    Attributes:
        passes: how many have come.
    """

    def __init__(self) -> None:
        self.passes, self._free, self._changed = 0, 1 << 30, threading.Condition()

    def let_through(self, passes: int) -> None:
        """Counts anew, and lets so many through."""
        with self._changed:
            self.passes, self._free = 0, passes

    def let_more_through(self, passes: int = 1 << 30) -> None:
        with self._changed:
            self._free += passes
            self._changed.notify_all()

    def enter(self) -> None:
        with self._changed:
            self.passes += 1
            self._changed.wait_for(lambda: self.passes <= self._free, PATIENCE_S)


DOOR = Door()


class Doored(nn.Module):
    """Its passes go through the door. One module is never called."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        DOOR.enter()
        out: Tensor = self.fc(x)
        return out
