"""Limits how long the body of a request may take to arrive, and its size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from starlette.types import Message, Receive

from cutaway.errors import Reason, error
from cutaway.gateway.time_limit import within


class RequestBody:
    """An ASGI ``receive`` with limits.

    Args:
        receive: the server's own.
        timeout_s: how long the whole body may take.
        max_bytes: its largest size.
    """

    def __init__(self, receive: Receive, timeout_s: float, max_bytes: int) -> None:
        self._receive = receive
        self._timeout_s = timeout_s
        self._until = asyncio.get_running_loop().time() + timeout_s
        self._max_bytes = max_bytes
        self._bytes = 0
        self._complete = False

    async def __call__(self) -> Message:
        """Returns the next ASGI message.

        Raises:
            CutawayError: ``DEADLINE_EXCEEDED`` or ``REQUEST_TOO_LARGE``.
        """
        if self._complete:  # what comes now is the end of the connection, at any time
            return await self._receive()
        left = self._until - asyncio.get_running_loop().time()
        try:
            message = await within(max(0.0, left), self._receive())
        except asyncio.TimeoutError:
            raise error(Reason.DEADLINE_EXCEEDED, f"the request did not arrive within {self._timeout_s:g} s") from None
        self._bytes += len(message.get("body", b""))
        if self._bytes > self._max_bytes:
            what = f"the request has more than {self._max_bytes} bytes, which is the limit"
            raise error(Reason.REQUEST_TOO_LARGE, what)
        self._complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """Yields the body as it arrives.

        Raises:
            CutawayError: as a call of this object; ``MALFORMED_REQUEST`` if the connection ends before.
        """
        while not self._complete:
            message = await self()
            if message["type"] != "http.request":
                raise error(Reason.MALFORMED_REQUEST, "the connection ended before its request was sent")
            yield message.get("body", b"")

    async def read(self) -> bytes:
        """Returns the whole body; raises what `parts` does."""
        return b"".join([part async for part in self.parts()])
