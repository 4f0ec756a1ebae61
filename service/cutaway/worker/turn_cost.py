"""What turns of calls cost, and into how many parts a slow one is split.

The calls of one part are answered before the next part runs, and they share what a pass costs whatever its number of
rows. So a turn is split where that costs next to nothing: if it takes long, and its parts take nearly as much time in
all as the turn in one.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import StatisticsError, linear_regression
from typing import TypeVar

T = TypeVar("T")

_REMEMBERED = 64
"""The last parts, whose time is fitted by a fixed cost and a cost for each call."""

_SHORTEST_S = 0.1
"""A part takes this long at least: nobody notices less."""

_LOSS = 0.1
"""The share of throughput that parts may cost."""


class TurnCost:
    """The time that the last turns of one worker took, by their number of calls."""

    def __init__(self) -> None:
        self._measured: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED)

    def parts(self, calls: Sequence[T]) -> Iterator[Sequence[T]]:
        """Splits the calls of a turn into parts of nearly one size."""
        number = max(1, math.floor(len(calls) / self._least_calls(len(calls))))
        size = math.ceil(len(calls) / number)
        for start in range(0, len(calls), size):
            yield calls[start : start + size]

    @contextmanager
    def measuring(self, calls: int) -> Iterator[None]:
        """Surrounds the run of a part of ``calls`` calls."""
        start = time.perf_counter()
        yield
        self.took(calls, time.perf_counter() - start)

    def took(self, calls: int, seconds: float) -> None:
        """Notes that a part of ``calls`` calls took ``seconds``."""
        self._measured.append((calls, seconds))

    def _least_calls(self, calls: int) -> float:
        """Returns how many of ``calls`` calls a part has at least; all while too little is known."""
        if not any(seconds > _SHORTEST_S for _, seconds in self._measured):
            return calls
        try:
            each_s, fixed_s = linear_regression(*zip(*self._measured))
        except StatisticsError:  # all had the same size
            return calls
        if each_s <= 0:
            return calls
        shared_s = max(0.0, fixed_s)
        lost_s = _LOSS * (shared_s / calls + each_s)
        enough = shared_s / (shared_s / calls + lost_s)
        return max(1.0, enough, (_SHORTEST_S - shared_s) / each_s)
