"""A reply that arrives in pieces: its tensors one by one, then the whole result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import Generic, TypeVar

from cutaway.display.inspection import Inspection
from cutaway.errors import Code, CutawayError
from cutaway.requests import InspectRequest
from cutaway.schema.tensors import Array
from cutaway.wire.reassembly import ReplyAssembler

Messages = TypeVar("Messages")


class _BaseReplyStream(Generic[Messages]):
    """What the blocking and the asynchronous stream share.

    As long as no tensor was returned to the caller, a lost reply is requested once more: a gateway does the same for a
    reply in one message when a worker dies during another call.

    Args:
        send: sends the request with a timeout in seconds, and returns the messages of the reply.
        timeout: seconds that the whole reply may take, from the first read.
        request: the request that ``send`` sends.
    """

    def __init__(self, send: Callable[[float], Messages], timeout: float, request: InspectRequest) -> None:
        self._send = send
        self._messages = send(timeout)
        self._request = request
        self._assembler = ReplyAssembler(request.max_reply_bytes)
        self._timeout = timeout
        self._deadline = 0.0  # set at the first read
        self._may_retry = True

    @property
    def reply_bytes(self) -> int:
        """How many bytes have arrived."""
        return self._assembler.reply_bytes

    def _start(self) -> None:
        self._deadline = self._deadline or time.monotonic() + self._timeout

    def _retry_after(self, failure: CutawayError) -> float:
        """Returns the seconds to wait before the retry; raises ``failure`` if there is none."""
        pause = failure.retry_after_s or 0.0
        if not self._may_retry or failure.code != Code.UNAVAILABLE or pause >= self._seconds_left():
            raise failure
        self._may_retry = False
        return pause

    def _retry(self) -> None:
        self._messages, self._assembler = (
            self._send(self._seconds_left()),
            ReplyAssembler(self._request.max_reply_bytes),
        )

    def _seconds_left(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)


class ReplyStream(_BaseReplyStream[Generator[bytes, None, None]]):
    """A reply that is arriving: iterate over it for ``(place, array)``, such as ``("captures.conv1.output", ...)``,
    each when it is complete, in the order of the reply; `result` returns all of it. Leaving the ``with`` block cancels
    the call.

    The arrays are those of the result, and read-only. Checksums are compared at the end: `result` and the iteration
    raise ``INTERNAL`` if one differs. The server may cancel the call if nothing is read for ten seconds.
    """

    def __iter__(self) -> Iterator[tuple[str, Array]]:
        for tensors in self._arriving():
            for place, array in tensors:
                self._may_retry = False
                yield place, array
        self._assembler.result()

    def result(self) -> Inspection:
        """Waits for the rest of the reply and returns the whole result.

        Raises:
            CutawayError: with a stable reason, and the field at fault; ``INTERNAL``, if the reply is damaged.
        """
        for _ in self._arriving():
            pass
        return Inspection.of(self._assembler.result(), self._request)

    def _arriving(self) -> Iterator[list[tuple[str, Array]]]:
        """Yields the tensors that each message completes."""
        self._start()
        while True:
            try:
                for message in self._messages:
                    yield self._assembler.add(message)
                return
            except CutawayError as failure:
                pause = self._retry_after(failure)
            time.sleep(pause)
            self._retry()

    def close(self) -> None:
        """Cancels the call."""
        self._messages.close()

    def __enter__(self) -> ReplyStream:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


class AsyncReplyStream(_BaseReplyStream[AsyncGenerator[bytes, None]]):
    """`ReplyStream` for asyncio."""

    async def __aiter__(self) -> AsyncIterator[tuple[str, Array]]:
        async for tensors in self._arriving():
            for place, array in tensors:
                self._may_retry = False
                yield place, array
        self._assembler.result()

    async def result(self) -> Inspection:
        """Does what `ReplyStream.result` does."""
        async for _ in self._arriving():
            pass
        return Inspection.of(self._assembler.result(), self._request)

    async def _arriving(self) -> AsyncIterator[list[tuple[str, Array]]]:
        self._start()
        while True:
            try:
                async for message in self._messages:
                    yield self._assembler.add(message)
                return
            except CutawayError as failure:
                pause = self._retry_after(failure)
            await asyncio.sleep(pause)
            self._retry()

    async def close(self) -> None:
        """Cancels the call."""
        await self._messages.aclose()

    async def __aenter__(self) -> AsyncReplyStream:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()
