"""The context of a call, as the methods of the service need it, and the status of its errors."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, Protocol, TypeAlias

import grpc

from cutaway.contract.errors import CutawayError, Reason, error, of_exception, release_frames
from cutaway.contract.wire import grpc_status

log = logging.getLogger(__name__)  # structlog's tracebacks show the values of variables, unless it is configured

Metadata: TypeAlias = "Sequence[tuple[str, str | bytes]]"
Headers: TypeAlias = Sequence[tuple[str, str]]
Write: TypeAlias = Callable[[bytes], Awaitable[None]]


class Context(Protocol):
    """The context of a call by any protocol; a `grpc.aio.ServicerContext` and a `TranslatedCall` are such."""

    def invocation_metadata(self) -> Metadata | None:
        """Returns the metadata that the caller sent with the request; keys are lower case."""

    def peer(self) -> str:
        """Returns the caller's address."""

    def time_remaining(self) -> float | None:
        """Returns the seconds until the deadline; None without one."""

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Sets the metadata that is sent after the reply."""

    def trailing_metadata(self) -> Metadata | None:
        """Returns the metadata that is sent after the reply."""

    def code(self) -> grpc.StatusCode | None:
        """Returns the status of a call that was aborted."""

    def write(self, message: bytes) -> Awaitable[None]:
        """Sends a message of a streamed reply; done when there is room for the next one."""

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: Metadata) -> NoReturn:
        """Ends the call with an error; always raises."""


class TranslatedCall:
    """A call that came by another protocol than ours: its errors are raised, for the protocol to translate.

    Args:
        headers: of the request, keys in lower case.
        peer: the caller's address.
    """

    def __init__(self, headers: Metadata, peer: str) -> None:
        self._headers = headers
        self._peer = peer
        self._deadline: float | None = None
        self._write: Write | None = None
        self._trailers: Metadata = ()
        self._code: grpc.StatusCode | None = None

    def limit(self, timeout_s: float | None) -> None:
        """Sets how long the call may take from now on; None is the server's default."""
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def send_by(self, write: Write) -> None:
        """Sets what sends a message of a streamed reply."""
        self._write = write

    def invocation_metadata(self) -> Metadata:
        """Returns the headers."""
        return self._headers

    def peer(self) -> str:
        """Returns the caller's address."""
        return self._peer

    def time_remaining(self) -> float | None:
        """Returns the seconds until the deadline; None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Sets what is sent with the reply."""
        self._trailers = metadata

    def trailing_metadata(self) -> Metadata:
        """Returns what is sent with the reply: the id of the request, once observers know the call."""
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


_EXHAUSTED = {
    errno.EMFILE: "the server has no file descriptor left",
    errno.ENFILE: "the server's machine has no file descriptor left",
    errno.ENOSPC: "the server's disk for temporary files is full",
}

_CODES = {code.value[0]: code for code in grpc.StatusCode}


async def abort_with(context: Context, failure: Exception) -> None:
    """Ends the call with the status of any error, and logs one that the contract does not have; always raises."""
    if (known := of_exception(failure)) is not None:
        release_frames(failure)
        await abort(known, context)
    if isinstance(failure, OSError) and failure.errno in _EXHAUSTED:
        await abort(error(Reason.OVERLOADED, f"{_EXHAUSTED[failure.errno]}; try again"), context)
    log.error("unexpected exception in a call", exc_info=failure)
    await abort(error(Reason.INTERNAL, type(failure).__name__), context)


async def abort(failure: CutawayError, context: Context) -> None:
    """Ends the call with the status of ``failure``; always raises."""
    details = (grpc_status.DETAILS_KEY, grpc_status.encode(failure))
    await context.abort(
        _CODES[failure.code], grpc_status.text(failure), (*(context.trailing_metadata() or ()), details)
    )
