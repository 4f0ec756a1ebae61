"""One timer for many deadlines: each passes in its own time, and none that was discarded."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from cutaway.server.deadlines import Deadlines

pytestmark = pytest.mark.anyio


async def test_each_passes_in_its_own_time() -> None:
    """In whatever order they were added, also when the timer had ended before."""
    began = time.monotonic()
    late: dict[str, float] = {}
    deadlines: Deadlines[str] = Deadlines(lambda item: late.setdefault(item, time.monotonic() - began))
    for item, timeout_s in {"second": 0.2, "first": 0.1, "never": 0.15, "third": 0.3}.items():
        deadlines.add(item, timeout_s)
    deadlines.discard("never")
    await asyncio.sleep(0.4)
    deadlines.add("last", 0.1)
    assert "last" in deadlines
    assert len(deadlines) == 1
    await asyncio.sleep(0.2)
    assert [*late] == ["first", "second", "third", "last"]
    assert all(seconds >= due for seconds, due in zip(late.values(), (0.1, 0.2, 0.3, 0.5), strict=True))
    assert len(deadlines) == 0


async def test_what_is_late_is_in_no_deadlines_any_more() -> None:
    """So a caller tells its end from another one; and what is late may be discarded still."""
    seen: list[bool] = []
    deadlines: Deadlines[str] = Deadlines(lambda item: seen.append(item in deadlines))
    deadlines.add("late", 0.0)
    await asyncio.sleep(0.05)
    deadlines.discard("late")
    assert seen == [False]


async def test_there_is_one_timer_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand that are done in time set one; it would be a tenth of the gateway's time for each."""
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []
    call_later = loop.call_later

    def counted(*how: Any) -> asyncio.TimerHandle:
        timers.append(call_later(*how))
        return timers[-1]

    monkeypatch.setattr(loop, "call_later", counted)
    deadlines: Deadlines[int] = Deadlines(lambda _: None)
    for item in range(1000):
        deadlines.add(item, 60.0)
        deadlines.discard(item)
    assert len(timers) == 1
    deadlines.add(-1, 1.0)
    assert [timer.cancelled() for timer in timers] == [True, False]
