"""A request queue that is fair to callers, and limits that callers share: slots and bytes."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Generic, TypeVar

from cutaway.contract.errors import CutawayError, Reason, error

T = TypeVar("T")

caller_id: ContextVar[str] = ContextVar("caller_id", default="")
"""The caller of the current task's call: the name of a token's entry, or the address of a connection."""


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


class FairSlots:
    """Slots that callers share: waiting callers get them in turn, and no caller gets more than half of them.

    Args:
        count: the number of slots.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._most = max(1, count // 2)
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def slot(self, timeout_s: float) -> AsyncIterator[None]:
        """Holds a slot for the current task's caller.

        Raises:
            TimeoutError: there was none within ``timeout_s`` seconds.
        """
        caller = caller_id.get()
        turn = self._queue(caller)
        try:
            # wait_for would swallow a cancellation that comes with the turn, before Python 3.12.
            done, _ = await asyncio.wait([turn], timeout=timeout_s)
            if not done:
                raise asyncio.TimeoutError
            yield
        finally:
            if turn.done():
                self._release(caller)
            turn.cancel()

    def _queue(self, caller: str) -> asyncio.Future[None]:
        """Returns a future that is done when ``caller`` holds a slot."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        self._hand_out()
        return turn

    def _release(self, caller: str) -> None:
        self._free += 1
        self._held[caller] -= 1
        self._held += Counter()  # removes callers that hold none
        self._hand_out()

    def _hand_out(self) -> None:
        while self._free and (caller := self._next_caller()) is not None:
            lane = self._waiting.pop(caller)
            turn = lane.popleft()
            if lane:
                self._waiting[caller] = lane
            if not turn.done():
                self._free -= 1
                self._held[caller] += 1
                turn.set_result(None)

    def _next_caller(self) -> str | None:
        return next((caller for caller in self._waiting if self._held[caller] < self._most), None)


_BURST_BYTES = 256 << 20
"""Bytes of requests after which free memory returns to the system, once no request is under way.

The C library glibc would keep most of it.
"""


class ByteBudget:
    """A limit of the bytes of all requests under way. One request alone is always within it.

    Args:
        most: the bytes of all callers; one caller may have half of them.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[str] = Counter()
        self._passed = 0

    def require_room(self) -> None:
        """Raises ``OVERLOADED`` if nothing is left: another request need not even be read."""
        if (held := self._held.total()) >= self._most:
            raise _overloaded(held, self._most)

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Holds the bytes of a request of the current task's caller; raises ``OVERLOADED`` if they are too many."""
        caller = caller_id.get()
        for held, most in ((self._held.total(), self._most), (self._held[caller], self._most // 2)):
            if held and held + size > most:
                raise _overloaded(held, most)
        self._held[caller] += size
        try:
            yield
        finally:
            self._held[caller] -= size
            if not self._held[caller]:
                del self._held[caller]
            self._passed += size
            if self._passed > _BURST_BYTES and not self._held:
                self._passed = 0
                threading.Thread(target=_return_memory, name="cutaway-trim", daemon=True).start()


def _return_memory() -> None:
    """Returns free memory to the system; does nothing where the C library is not glibc."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _overloaded(held: int, most: int) -> CutawayError:
    what = f"requests of {held} bytes are under way, {most} are allowed at a time"
    return error(Reason.OVERLOADED, f"{what}; try again")
