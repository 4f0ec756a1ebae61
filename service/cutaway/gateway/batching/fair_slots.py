"""Slots that callers share: those who wait get them in turn, and none gets more than half of them."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cutaway.gateway.batching.fair_queue import caller_id


class FairSlots:
    """As many slots as calls may hold at the same time.

    Args:
        count: how many there are.
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
