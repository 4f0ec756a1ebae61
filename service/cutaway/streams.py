"""A reply that comes in pieces: its tensors one by one, then all of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from types import TracebackType

from cutaway.errors import Code, CutawayError
from cutaway.results import InspectResult
from cutaway.tensors import Array
from cutaway.wire.assembly import Assembly


class Chance:
    """One more chance for a question, while nothing of its answer has been handed on: what a server would do itself for
    an answer in one message, where a worker dies of something else.

    Args:
        timeout: seconds that all of it may take, from the first attempt's beginning.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._until = 0.0
        self._is_left = True

    def begin(self) -> None:
        """The clock runs, unless it does already."""
        self._until = self._until or time.monotonic() + self._timeout

    def miss(self) -> None:
        """Something has been handed on."""
        self._is_left = False

    def take(self, failure: CutawayError) -> float:
        """How many seconds to wait after ``failure`` before the question is asked again.

        Raises:
            CutawayError: ``failure``, where that is not to be.
        """
        pause = failure.retry_after_s or 0.0
        if not self._is_left or failure.code != Code.UNAVAILABLE or pause >= self.seconds:
            raise failure
        self._is_left = False
        return pause

    @property
    def seconds(self) -> float:
        """How much time is left."""
        return max(self._until - time.monotonic(), 0.0)


class ReplyStream:
    """An answer on its way: iterate over it for ``(place, array)``, such as ``("captures.conv1.output", ...)``, each
    as soon as it is complete, in the order of the reply; `result` is all of it.

    An array is what the result will hold, read-only. That it arrived unharmed is known at the end: where a checksum
    differs, `result` and the iteration raise ``INTERNAL``. A reader that takes nothing for ten seconds may be given up
    by the server. Leaving the ``with`` block hangs up.

    Where the server loses an answer of which nothing has been handed on yet, it is asked once more.

    Args:
        ask: asks, within so many seconds; the messages of the answer.
        timeout: seconds that all of it may take.
    """

    def __init__(self, ask: Callable[[float], Generator[bytes, None, None]], timeout: float) -> None:
        self._ask = ask
        self._messages = ask(timeout)
        self._assembly = Assembly()
        self._chance = Chance(timeout)

    def __iter__(self) -> Iterator[tuple[str, Array]]:
        for complete in self._arriving():
            for each in complete:
                self._chance.miss()
                yield each
        self._assembly.result()

    def result(self) -> InspectResult:
        """The whole answer; what has not arrived yet is waited for.

        Raises:
            CutawayError: with a stable reason, and the field at fault; ``INTERNAL``, where the reply is damaged.
        """
        for _ in self._arriving():
            pass
        return self._assembly.result()

    def _arriving(self) -> Iterator[list[tuple[str, Array]]]:
        """The tensors that are complete by each message."""
        self._chance.begin()
        try:
            for message in self._messages:
                yield self._assembly.take(message)
            return
        except CutawayError as failure:
            pause = self._chance.take(failure)
        time.sleep(pause)
        self._messages, self._assembly = self._ask(self._chance.seconds), Assembly()
        for message in self._messages:
            yield self._assembly.take(message)

    @property
    def reply_bytes(self) -> int:
        """How much has arrived, in bytes."""
        return self._assembly.reply_bytes

    def close(self) -> None:
        """Hang up."""
        self._messages.close()

    def __enter__(self) -> ReplyStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncReplyStream:
    """`ReplyStream`, awaited."""

    def __init__(self, ask: Callable[[float], AsyncGenerator[bytes, None]], timeout: float) -> None:
        self._ask = ask
        self._messages = ask(timeout)
        self._assembly = Assembly()
        self._chance = Chance(timeout)

    async def __aiter__(self) -> AsyncIterator[tuple[str, Array]]:
        async for complete in self._arriving():
            for each in complete:
                self._chance.miss()
                yield each
        self._assembly.result()

    async def result(self) -> InspectResult:
        """The whole answer; what has not arrived yet is waited for.

        Raises:
            CutawayError: with a stable reason, and the field at fault; ``INTERNAL``, where the reply is damaged.
        """
        async for _ in self._arriving():
            pass
        return self._assembly.result()

    async def _arriving(self) -> AsyncIterator[list[tuple[str, Array]]]:
        """The tensors that are complete by each message."""
        self._chance.begin()
        try:
            async for message in self._messages:
                yield self._assembly.take(message)
            return
        except CutawayError as failure:
            pause = self._chance.take(failure)
        await asyncio.sleep(pause)
        self._messages, self._assembly = self._ask(self._chance.seconds), Assembly()
        async for message in self._messages:
            yield self._assembly.take(message)

    @property
    def reply_bytes(self) -> int:
        """How much has arrived, in bytes."""
        return self._assembly.reply_bytes

    async def close(self) -> None:
        """Hang up."""
        await self._messages.aclose()

    async def __aenter__(self) -> AsyncReplyStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
