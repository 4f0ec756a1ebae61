"""Networks that end a request in other ways than with an answer. Each takes ``x``, [batch, 4]."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Sound(nn.Module):
    """Nothing wrong with it: linear layers around an operator, with a buffer that counts and a frozen parameter."""

    passes: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.b = nn.Linear(6, 6)
        self.c = nn.Linear(6, 3)
        self.c.bias.requires_grad_(False)
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.end(F.relu(self.norm(self.a(x))))

    def end(self, h: Tensor) -> Tensor:
        """What each of the others does in its own way."""
        return self.c(self.b(h))


def is_bad(h: Tensor) -> bool:
    """Whether a hidden value comes from an edit that scales it up, and not from a plain request."""
    return bool((h.detach().abs() > 1e3).any())


class RaisesLate(Sound):
    """An exception behind modules that were captured."""

    error: type[BaseException] = ValueError

    def end(self, h: Tensor) -> Tensor:
        logits = super().end(h)
        if is_bad(h):
            raise self.error("too much")
        return logits


class Exits(RaisesLate):
    error = SystemExit


class RunsOut(RaisesLate):
    error = MemoryError


class IsCancelled(RaisesLate):
    error = asyncio.CancelledError


class EndsAGenerator(RaisesLate):
    error = GeneratorExit


class _Backfire(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.bad = is_bad(h)
        return h.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if ctx.bad:
            raise ValueError("no way back")
        return gradients[0]


class Backfires(Sound):
    """An exception in the model's own backward."""

    def end(self, h: Tensor) -> Tensor:
        return super().end(_Backfire.apply(h))


class Catches(Sound):
    """Every exception of one part is caught, and the part left out."""

    caught: type[BaseException] = Exception

    def end(self, h: Tensor) -> Tensor:
        try:
            return super().end(h)
        except self.caught:
            return self.c(h)


class CatchesAll(Catches):
    """The same, and more than exceptions."""

    caught = BaseException


class Rewords(Sound):
    """Every exception becomes one of its own."""

    def end(self, h: Tensor) -> Tensor:
        try:
            return super().end(h)
        except Exception as failure:
            raise RuntimeError("the second half failed") from failure


class Meddles(Sound):
    """Does to itself and to PyTorch, in the midst of its forward, what nobody should, and then raises."""

    def end(self, h: Tensor) -> Tensor:
        if is_bad(h):
            self.train()
            self.a.weight.requires_grad_(False)
            self.c.bias.requires_grad_(True)
            self.b.weight.grad = torch.ones_like(self.b.weight)
            self.passes = self.passes + 7
            torch.set_grad_enabled(False)
            raise ValueError("enough of this")
        return super().end(h)


class Pieces(Sound):
    """Its stages are a generator, which a failure leaves half used."""

    def end(self, h: Tensor) -> Tensor:
        for h in self._stages(h):  # noqa: B020
            if is_bad(h):
                raise ValueError("half way")
        return h

    def _stages(self, h: Tensor) -> Any:
        with torch.no_grad() if is_bad(h) else torch.enable_grad():
            h = self.b(h)
            yield h
            yield self.c(h)


class Sleeps(Sound):
    """Counts its passes, and falls asleep in one of them.

    Attributes:
        begun: how many passes have begun, in an array, which is not restored behind a pass as numbers are.
        tired: in which one it falls asleep, from 1.
        sleep: lets the time pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self.begun = array("q", [0])
        self.tired = 0
        self.sleep: Callable[[], None] = lambda: None

    def forward(self, x: Tensor) -> Tensor:
        self.begun[0] += 1
        if self.begun[0] == self.tired:
            self.sleep()
        return super().forward(x)


class Dice(Sound):
    """Drops half of everything, also in evaluation mode."""

    def end(self, h: Tensor) -> Tensor:
        return super().end(F.dropout(h, 0.5, training=True))
