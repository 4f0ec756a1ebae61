"""Ends gRPC calls with the status of an error."""

from __future__ import annotations

import errno
import logging
from typing import TypeAlias

import grpc
import grpc.aio

from cutaway.errors import CutawayError, Reason, error
from cutaway.wire import grpc_status

log = logging.getLogger(__name__)  # structlog's tracebacks show the values of variables, unless it is configured

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"

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
