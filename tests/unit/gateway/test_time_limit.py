"""What is awaited for a limited time."""

from __future__ import annotations

import asyncio
import logging

import pytest

import cutaway as ca
from cutaway.server.batching import within
from cutaway.server.rpc.guard import RequestReader

SOON_S = 0.05
LATE_S = 600.0

pytestmark = pytest.mark.anyio


async def test_a_cancellation_is_not_swallowed() -> None:
    """Also if it comes at the moment at which the result is there."""
    result: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(within(LATE_S, result))
    await asyncio.sleep(SOON_S)
    result.set_result(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_an_error_that_comes_with_a_cancellation_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """As when a caller hangs up while a message is on its way."""

    async def run() -> None:
        result: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(within(LATE_S, result))
        await asyncio.sleep(SOON_S)
        result.set_exception(ValueError("the call has ended"))
        waiting.cancel()
        await asyncio.wait([waiting])

    with caplog.at_level(logging.DEBUG, "asyncio"):
        asyncio.run(run())  # anyio's loop would not log it
    assert not [record for record in caplog.records if "never retrieved" in record.getMessage()]


async def test_what_takes_too_long_is_cancelled() -> None:
    result: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    with pytest.raises(asyncio.TimeoutError):
        await within(SOON_S, result)
    assert result.cancelled()


class Silent:
    """The context of a call whose request never comes."""

    async def read(self) -> object:
        return await asyncio.Event().wait()


async def test_a_request_that_does_not_come_is_late() -> None:
    """A caller who hangs up before is not told so: its call is cancelled."""
    reader = RequestReader(SOON_S)
    leaving = asyncio.ensure_future(reader.read(Silent()))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    with pytest.raises(ca.DeadlineExceeded, match="did not arrive"):
        await reader.read(Silent())
