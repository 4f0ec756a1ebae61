"""A call by HTTP, as the methods of the service see it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, TypeAlias

import grpc

from cutaway.gateway.rpc.status import Metadata
from cutaway.wire import grpc_status

Headers: TypeAlias = Sequence[tuple[str, str]]
Write: TypeAlias = Callable[[bytes], Awaitable[None]]


class HttpCall:
    """One call; a `cutaway.gateway.rpc.status.Context`.

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
        """The same as headers."""
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
