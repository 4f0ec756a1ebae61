"""Keeps the deadlines of many things, which rarely pass, by one timer of the event loop, which is rarely set."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Deadlines(Generic[T]):
    """Holds what shall be done in time, and until when; belongs to one event loop.

    Args:
        late: called with what was not discarded in time, which is no longer in this container then.
    """

    def __init__(self, late: Callable[[T], object]) -> None:
        self._late = late
        self._ends: dict[T, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = math.inf

    def add(self, item: T, timeout_s: float) -> None:
        """Adds what has ``timeout_s`` seconds from now on."""
        now = time.monotonic()
        self._ends[item] = end = now + timeout_s
        if end < self._next:
            self._set_timer(end, now)

    def discard(self, item: T) -> None:
        """Removes what is done, or late."""
        self._ends.pop(item, None)

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, item: T) -> bool:
        return item in self._ends

    def _set_timer(self, end: float, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = end
        self._timer = asyncio.get_running_loop().call_later(end - now, self._passed)

    def _passed(self) -> None:
        now = time.monotonic()
        for item in [item for item, end in self._ends.items() if end <= now]:
            del self._ends[item]
            self._late(item)
        self._timer, self._next = None, math.inf
        if self._ends:
            self._set_timer(min(self._ends.values()), now)
