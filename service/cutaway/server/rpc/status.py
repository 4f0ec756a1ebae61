"""The context of a call, as the methods of the service need it, and the status of its errors."""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, Protocol, TypeAlias

import grpc

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.wire import grpc_status

log = logging.getLogger(__name__)  # structlog's tracebacks show the values of variables, unless it is configured

Metadata: TypeAlias = "Sequence[tuple[str, str | bytes]]"


class Context(Protocol):
    """The context of a call by any protocol; `grpc.aio.ServicerContext` and `cutaway.server.http` have it."""

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


_EXHAUSTED = {
    errno.EMFILE: "the server has no file descriptor left",
    errno.ENFILE: "the server's machine has no file descriptor left",
    errno.ENOSPC: "the server's disk for temporary files is full",
}

_CODES = {code.value[0]: code for code in grpc.StatusCode}


async def abort_with(context: Context, failure: Exception) -> None:
    """Ends the call with the status of any error, and logs one that the contract does not have; always raises."""
    if isinstance(failure, CutawayError):
        await abort(context, failure)
    if isinstance(failure, OSError) and failure.errno in _EXHAUSTED:
        await abort(context, error(Reason.OVERLOADED, f"{_EXHAUSTED[failure.errno]}; try again"))
    log.error("unexpected exception in a call", exc_info=failure)
    await abort(context, error(Reason.INTERNAL, type(failure).__name__))


async def abort(context: Context, failure: CutawayError) -> None:
    """Ends the call with the status of ``failure``; always raises."""
    details = (grpc_status.DETAILS_KEY, grpc_status.encode(failure))
    await context.abort(
        _CODES[failure.code], grpc_status.text(failure), (*(context.trailing_metadata() or ()), details)
    )


def refusing(failure: CutawayError) -> Callable[[bytes, Context], Awaitable[None]]:
    """Returns a method that ends every call with ``failure``."""

    async def refuse(_: bytes, context: Context) -> None:
        await abort(context, failure)

    return refuse
