"""A request queue that is fair to callers: one call of each caller after the other."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")

caller_id: ContextVar[str] = ContextVar("caller_id", default="")
"""Whose call the current task handles: the name of a token's entry, or the address of a connection."""


class FairQueue(Generic[T]):
    """A queue with one lane for each caller; lanes are served round-robin."""

    def __init__(self) -> None:
        self._first: deque[T] = deque()
        self._lanes: OrderedDict[str, deque[T]] = OrderedDict()
        self._length = 0

    def put(self, item: T) -> None:
        """Appends an item to the lane of the current task's caller."""
        self._lanes.setdefault(caller_id.get(), deque()).append(item)
        self._length += 1

    def put_back(self, items: Sequence[T]) -> None:
        """Inserts items, in order, before all others: they have waited already."""
        self._first.extendleft(reversed(items))
        self._length += len(items)

    def peek(self) -> T:
        """Returns the item that `pop` returns next."""
        return self._first[0] if self._first else next(iter(self._lanes.values()))[0]

    def pop(self) -> T:
        """Removes and returns the next item; the caller's lane goes to the end."""
        self._length -= 1
        if self._first:
            return self._first.popleft()
        caller, lane = self._lanes.popitem(last=False)
        item = lane.popleft()
        if lane:
            self._lanes[caller] = lane
        return item

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        yield from self._first
        for lane in self._lanes.values():
            yield from lane
