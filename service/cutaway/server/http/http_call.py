"""A call by HTTP, as the methods of the service see it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import grpc

from cutaway.contract.errors import Reason, error
from cutaway.contract.wire import grpc_status
from cutaway.server.rpc.status import Metadata
from cutaway.server.time_limit import within

if TYPE_CHECKING:  # a gateway without HTTP has calls of this kind, but not this package
    from starlette.types import Message, Receive

Headers: TypeAlias = Sequence[tuple[str, str]]
Write: TypeAlias = Callable[[bytes], Awaitable[None]]


class HttpCall:
    """A call by HTTP; a `cutaway.server.rpc.status.Context`.

    Args:
        headers: of the request, keys in lower case.
        peer: the caller's ``host:port``.
        write: sends a message of a streamed reply.
    """

    def __init__(self, headers: Headers, peer: str, write: Write | None = None) -> None:
        self._headers = headers
        self._peer = peer
        self._deadline: float | None = None
        self._write = write
        self._trailers: Metadata = ()
        self._code: grpc.StatusCode | None = None

    def limit(self, timeout_s: float | None) -> None:
        """Sets how long the call may take from now on; None is the server's default."""
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def invocation_metadata(self) -> Metadata:
        """Returns the headers."""
        return self._headers

    def peer(self) -> str:
        """Returns the caller's address."""
        return f"http:{self._peer}"

    def time_remaining(self) -> float | None:
        """Returns the seconds until the deadline; None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Sets what is sent with the reply."""
        self._trailers = metadata

    def trailing_metadata(self) -> Metadata:
        """Returns what is sent with the reply: the id of the request."""
        return self._trailers

    @property
    def reply_headers(self) -> Headers:
        """The metadata of the reply, as headers."""
        return [(key, value) for key, value in self._trailers if isinstance(value, str)]

    def code(self) -> grpc.StatusCode | None:
        """Returns the status of a call that was aborted."""
        return self._code

    async def write(self, message: bytes) -> None:
        """Sends a message of a streamed reply."""
        if self._write is None:
            raise RuntimeError("a call with one reply has no stream")
        await self._write(message)

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: Metadata) -> NoReturn:
        """Ends the call with an error.

        Raises:
            CutawayError: the error.
        """
        self._code, self._trailers = code, trailing_metadata
        raise grpc_status.decode(code.value[0], details, trailing_metadata)


class RequestBody:
    """The body of a request, with limits of its size and of the time that it may take to arrive.

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
