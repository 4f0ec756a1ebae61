"""A time limit for awaitables."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(timeout_s: float, awaited: Awaitable[T]) -> T:
    """Returns the result of ``awaited``, which is cancelled if it takes longer, or if the current task is cancelled.
    Before Python 3.12, `asyncio.wait_for` swallows a cancellation that comes with the result.

    Raises:
        TimeoutError: that of asyncio, after ``timeout_s`` seconds.
    """
    task = asyncio.ensure_future(awaited)
    try:
        done, _ = await asyncio.wait([task], timeout=timeout_s)
        if not done:
            raise asyncio.TimeoutError
        return task.result()
    finally:
        if not task.cancel() and not task.cancelled():
            task.exception()  # else asyncio logs it, if the current task was cancelled at the same moment
