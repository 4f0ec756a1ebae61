"""Converts requests and replies of other protocols in a few threads, which callers share fairly.

The event loop answers all callers, and converts only what is small. Each thread that runs Python makes the loop wait
for its turn; so of the large messages one is converted at a time. A conversion that is late goes on in its thread, and
its caller has that thread until it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

from cutaway.contract.errors import Reason, error
from cutaway.server.batching import FairSlots

T = TypeVar("T")

_THREADS = 4
"""One caller has at most half of them. More would not be faster: Python runs one at a time."""

_SMALL_BYTES = 1 << 12
"""The size up to which a message is converted at once: a few hundred entries, which take less than a millisecond."""

_LARGE_BYTES = 1 << 18
"""The size above which a message is converted alone: it takes from 20 milliseconds to a second."""

_COPIED_BYTES = 1 << 20
"""The size up to which a message is copied at once."""


class Translator:
    """Threads for conversions."""

    def __init__(self) -> None:
        self._slots, self._turns = FairSlots(_THREADS), FairSlots(1)
        self._threads = ThreadPoolExecutor(_THREADS + 1, "cutaway-translation")
        self._running: set[asyncio.Task[Any]] = set()

    async def convert(
        self, function: Callable[[bytes], T], data: bytes, timeout_s: float, cost: int | None = None
    ) -> T:
        """Returns what ``function`` makes of ``data``, for the current task's caller.

        It is the only one that has ``data``, if its caller keeps no reference: what it deletes is free.

        Args:
            function: converts a message.
            data: the message.
            timeout_s: how long that may take.
            cost: the bytes of ``data`` that are parsed, if it only copies the others.

        Raises:
            CutawayError: ``DEADLINE_EXCEEDED``, or what ``function`` raises.
        """
        cost = len(data) if cost is None else cost
        if cost <= _SMALL_BYTES and len(data) <= _COPIED_BYTES:
            return function(data)
        left = [data]
        del data
        task = asyncio.ensure_future(self._in_thread(function, left, timeout_s, cost > _LARGE_BYTES))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            if await _done_within(task, timeout_s):
                return task.result()
        except asyncio.TimeoutError:
            pass
        finally:
            if left:  # it waits for a thread
                task.cancel()
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # else asyncio logs it
            del task  # it has the error, which has this frame: the request would stay until the next collection
        raise error(Reason.DEADLINE_EXCEEDED, f"the message was not converted within {timeout_s:g} s")

    async def _in_thread(self, function: Callable[[bytes], T], left: list[bytes], timeout_s: float, alone: bool) -> T:
        """Waits for a fair slot, then converts the message in a thread; ``left`` is empty once that begins."""
        async with (self._turns if alone else self._slots).slot(timeout_s):
            run = copy_context().run
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, lambda: run(lambda: function(left.pop()))
            )


async def _done_within(task: asyncio.Task[Any], timeout_s: float) -> bool:
    """Waits for ``task``, at most ``timeout_s`` seconds and without cancelling it; returns whether it has ended."""
    done, _ = await asyncio.wait([task], timeout=timeout_s)
    return bool(done)
