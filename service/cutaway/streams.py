"""A reply that comes in pieces: its tensors one by one, then all of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from types import TracebackType

from cutaway.results import InspectResult
from cutaway.tensors import Array
from cutaway.wire.assembly import Assembly


class ReplyStream:
    """An answer on its way: iterate over it for ``(place, array)``, such as ``("captures.conv1.output", ...)``, each
    as soon as it is complete, in the order of the reply; `result` is all of it.

    An array is what the result will hold, read-only. That it arrived unharmed is known at the end: where a checksum
    differs, `result` and the iteration raise ``INTERNAL``. A reader that takes nothing for ten seconds may be given up
    by the server. Leaving the ``with`` block hangs up.
    """

    def __init__(self, messages: Generator[bytes, None, None]) -> None:
        self._messages = messages
        self._assembly = Assembly()

    def __iter__(self) -> Iterator[tuple[str, Array]]:
        for message in self._messages:
            yield from self._assembly.take(message)
        self._assembly.result()

    def result(self) -> InspectResult:
        """The whole answer; what has not arrived yet is waited for.

        Raises:
            CutawayError: with a stable reason, and the field at fault; ``INTERNAL``, where the reply is damaged.
        """
        for message in self._messages:
            self._assembly.take(message)
        return self._assembly.result()

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

    def __init__(self, messages: AsyncGenerator[bytes, None]) -> None:
        self._messages = messages
        self._assembly = Assembly()

    async def __aiter__(self) -> AsyncIterator[tuple[str, Array]]:
        async for message in self._messages:
            for each in self._assembly.take(message):
                yield each
        self._assembly.result()

    async def result(self) -> InspectResult:
        """The whole answer; what has not arrived yet is waited for.

        Raises:
            CutawayError: with a stable reason, and the field at fault; ``INTERNAL``, where the reply is damaged.
        """
        async for message in self._messages:
            self._assembly.take(message)
        return self._assembly.result()

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
