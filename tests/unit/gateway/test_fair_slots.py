"""Slots that callers share, and conversions, which take turns."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack

import pytest

from cutaway.server.batching import FairSlots, caller_id
from cutaway.server.rpc.status import Translator
from tests.support.waiting import PATIENCE_S

SOON_S = 0.05
LATE_S = 600.0

pytestmark = pytest.mark.anyio


async def take(slots: FairSlots, caller: str, timeout_s: float = LATE_S) -> AsyncExitStack:
    """Holds a slot for ``caller`` until what is returned is closed."""
    caller_id.set(caller)
    stack = AsyncExitStack()
    await stack.enter_async_context(slots.slot(timeout_s))
    return stack


async def test_a_caller_has_half_of_them() -> None:
    """However many are free; the others are for others."""
    slots = FairSlots(4)
    first = [await take(slots, "one") for _ in range(2)]
    with pytest.raises(asyncio.TimeoutError):
        await take(slots, "one", SOON_S)
    second = [await take(slots, "two") for _ in range(2)]
    with pytest.raises(asyncio.TimeoutError):
        await take(slots, "three", SOON_S)
    for held in [*first, *second]:
        await held.aclose()
    await take(slots, "one", SOON_S)


async def test_callers_take_turns() -> None:
    """Whoever waits with many calls gets a slot, and then the next caller does."""
    slots, order = FairSlots(2), list[str]()
    held = [await take(slots, "zero"), await take(slots, "other")]

    async def wait(caller: str) -> None:
        stack = await take(slots, caller)
        order.append(caller)
        await stack.aclose()

    waiting = [asyncio.ensure_future(wait(caller)) for caller in ("one", "one", "one", "two")]
    await asyncio.sleep(SOON_S)
    await held[0].aclose()
    await asyncio.gather(*waiting)
    assert order == ["one", "two", "one", "one"]


async def test_a_caller_who_leaves_holds_nothing() -> None:
    """Whether it left before its turn or at the same moment."""
    slots = FairSlots(2)
    held = [await take(slots, "one"), await take(slots, "two")]
    leaving = asyncio.ensure_future(take(slots, "three"))
    await asyncio.sleep(SOON_S)
    await held[0].aclose()  # the turn is handed out, and not taken yet
    leaving.cancel()
    await asyncio.wait([leaving])
    await take(slots, "four", LATE_S)


async def test_of_large_messages_one_is_converted_at_a_time() -> None:
    """Each thread that runs makes the event loop wait; messages of a moderate size go on beside."""
    translator, large, moderate = Translator(), bytes(1_000_000), bytes(100_000)
    begun, one_has, go = list[str](), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def held(data: bytes) -> int:
        begun.append(caller_id.get())
        loop.call_soon_threadsafe(one_has.set)
        go.wait()
        return len(data)

    async def convert(caller: str) -> int:
        caller_id.set(caller)
        return await translator.convert(held, large, LATE_S)

    tasks = [asyncio.ensure_future(convert(caller)) for caller in ("one", "two")]
    caller_id.set("three")
    try:
        assert await translator.convert(len, moderate, LATE_S) == len(moderate)
        await one_has.wait()
        assert begun == ["one"]
    finally:
        go.set()
    assert await asyncio.gather(*tasks) == [len(large)] * 2
    assert begun == ["one", "two"]


async def test_a_large_message_waits_for_no_smaller_ones() -> None:
    """It has a thread of its own, so that a caller whose smaller messages wait keeps no turn from others."""
    translator, large, moderate, go = Translator(), bytes(1_000_000), bytes(100_000), threading.Event()
    caller_id.set("one")
    held = [asyncio.ensure_future(translator.convert(lambda _: go.wait(), moderate, LATE_S)) for _ in range(3)]
    try:
        await asyncio.sleep(SOON_S)
        assert await translator.convert(len, large, PATIENCE_S) == len(large)
        caller_id.set("two")
        assert await translator.convert(len, large, PATIENCE_S) == len(large)
        assert not any(each.done() for each in held)
    finally:
        go.set()
    await asyncio.gather(*held)
