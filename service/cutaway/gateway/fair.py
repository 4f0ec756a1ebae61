"""Who is next: one call of each caller after the other, however many each of them has waiting."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")

caller: ContextVar[str] = ContextVar("caller", default="")
"""On whose behalf this task runs: a connection, or the name that a token goes by."""


class FairQueue(Generic[T]):
    """A queue with a lane for each caller, who take turns."""

    def __init__(self) -> None:
        self._first: deque[T] = deque()
        self._lanes: OrderedDict[str, deque[T]] = OrderedDict()
        self._length = 0

    def put(self, each: T) -> None:
        """At the end of the lane of whoever this task runs for."""
        self._lanes.setdefault(caller.get(), deque()).append(each)
        self._length += 1

    def put_back(self, several: Sequence[T]) -> None:
        """Before all others, in order: they have waited already."""
        self._first.extendleft(reversed(several))
        self._length += len(several)

    def next(self) -> T:
        """Who is next, and stays so until `pop`."""
        return self._first[0] if self._first else next(iter(self._lanes.values()))[0]

    def pop(self) -> T:
        """Who is next; the caller's other calls come after those of everybody else."""
        self._length -= 1
        if self._first:
            return self._first.popleft()
        name, lane = self._lanes.popitem(last=False)
        following = lane.popleft()
        if lane:
            self._lanes[name] = lane
        return following

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        yield from self._first
        for lane in self._lanes.values():
            yield from lane
