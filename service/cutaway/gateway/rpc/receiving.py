"""Limits the time that the request of a call may take to arrive.

gRPC waits for the rest of a request for as long as its connection lives, and a caller who answers pings keeps the
connection alive. So the methods take their request as a stream of one message, and read it themselves; on the wire a
unary call is the same. Without an interceptor, which would slow every call down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio

from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.observability.call_watch import Method
from cutaway.gateway.rpc.status import Context, abort

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


def receiving(method: Method, watch: Callable[[Method], Method], timeout_s: float, *, streams: bool) -> Handler:
    """Returns the handler of ``method``.

    Args:
        method: handles a serialised request.
        watch: returns a method, observed.
        timeout_s: how long the request may take to arrive.
        streams: whether the method writes a stream of replies.
    """
    observed = watch(method)

    async def handle(_: object, context: Context) -> bytes | None:
        try:
            data = await _receive(context, timeout_s)
        except CutawayError as failure:
            return await watch(refusing(failure))(b"", context)
        return await observed(data, context)

    make: Any = grpc.stream_stream_rpc_method_handler if streams else grpc.stream_unary_rpc_method_handler
    handler: Handler = make(handle)
    return handler


def refusing(failure: CutawayError) -> Method:
    """Returns a method that ends every call with ``failure``."""

    async def refuse(_: bytes, context: Context) -> None:
        await abort(context, failure)

    return refuse


async def _receive(context: Context, timeout_s: float) -> bytes:
    """Returns the request of a call.

    Raises:
        CutawayError: ``DEADLINE_EXCEEDED``, or ``MALFORMED_REQUEST`` if the caller sends none.
    """
    reading = asyncio.ensure_future(context.read())
    try:
        await asyncio.wait([reading], timeout=timeout_s)  # wait_for would swallow a cancellation, before Python 3.12
        if not reading.done():
            raise error(Reason.DEADLINE_EXCEEDED, f"the request did not arrive within {timeout_s:g} s")
        data: object = reading.result()
    finally:
        reading.cancel()
    if not isinstance(data, bytes):  # grpc.aio.EOF
        raise error(Reason.MALFORMED_REQUEST, "the call ended before its request was sent")
    return data
