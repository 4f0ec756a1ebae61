"""Wraps handlers of HTTP requests: authentication, time limit, and errors as problem details (RFC 9457)."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, TypeAlias, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from cutaway.contract.errors import DOMAIN, Code, CutawayError, Reason, error
from cutaway.contract.wire import grpc_status
from cutaway.server.http.http_call import Headers, HttpCall
from cutaway.server.rpc.servicer import Servicer

MEDIA_TYPE = "application/problem+json"

_STATUS = {
    Code.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    Code.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
    Code.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Code.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    Code.RESOURCE_EXHAUSTED: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Code.FAILED_PRECONDITION: HTTPStatus.CONFLICT,
    Code.UNIMPLEMENTED: HTTPStatus.NOT_IMPLEMENTED,
    Code.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
    Code.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
}

_AGAIN = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


def http_status(failure: CutawayError) -> HTTPStatus:
    """Returns the status of ``failure``: 429 for what is only too much at once, 413 for what is too large."""
    if failure.code == Code.RESOURCE_EXHAUSTED and failure.retry_after_s is not None:
        return HTTPStatus.TOO_MANY_REQUESTS
    return _STATUS.get(Code(failure.code), HTTPStatus.INTERNAL_SERVER_ERROR)


def problem(failure: CutawayError, headers: Headers = ()) -> Response:
    """Returns the response for ``failure``, with ``headers``."""
    return _response(failure, headers, MEDIA_TYPE)


def plain_problem(failure: CutawayError, headers: Headers = ()) -> Response:
    """Returns the same as plain JSON: KServe's client reads ``error`` from nothing else."""
    return _response(failure, headers, "application/json")


def _response(failure: CutawayError, headers: Headers, media_type: str) -> Response:
    status = http_status(failure)
    known: dict[str, Any] = {
        "type": f"https://{DOMAIN}/errors/{failure.reason}",
        "title": status.phrase,
        "status": int(status),
        "detail": grpc_status.text(failure),
        "reason": str(failure.reason),
        "error": grpc_status.text(failure),  # where KServe's and Triton's callers look
    }
    if failure.field:
        known["field"] = failure.field
    sent = dict(headers)
    if status in _AGAIN:
        sent["retry-after"] = str(max(1, math.ceil(failure.retry_after_s or 1.0)))
    if status == HTTPStatus.UNAUTHORIZED:
        sent["www-authenticate"] = "Bearer"
    return Response(json.dumps(known), int(status), sent, media_type)


TIMEOUT = "x-timeout-ms"
"""The header with the milliseconds that a call may take."""

log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[Request, HttpCall], Awaitable[Response]]

Respond: TypeAlias = Callable[[CutawayError, Headers], Response]

T = TypeVar("T")


def guarded(
    servicer: Servicer, name: str, handler: Handler, respond: Respond = problem
) -> Callable[[Request], Awaitable[Response]]:
    """Returns ``handler`` for callers who may call the method ``name``; ``respond`` returns the response for
    an error."""

    async def answer(request: Request) -> Response:
        call = HttpCall(request.headers.items(), _peer(request))
        try:
            try:
                call.limit(_timeout(request))
                servicer.admit(call)
            except CutawayError as failure:
                await servicer.refuse(name, failure, call)
            response = await handler(request, call)
            response.headers.update(dict(call.reply_headers))
        except CutawayError as failure:
            return respond(failure, call.reply_headers)
        except Exception as failure:
            log.error("unexpected exception in a call", exc_info=failure)
            return respond(error(Reason.INTERNAL, type(failure).__name__), call.reply_headers)
        return response

    return answer


async def unless_gone(request: Request, call: Awaitable[T]) -> T:
    """Returns the reply; cancels the call if the caller ends the connection before."""
    running, gone = asyncio.ensure_future(call), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait([running, gone], return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            running.cancel()
            await asyncio.wait([running])
        return running.result()
    except asyncio.CancelledError:
        raise error(Reason.DEADLINE_EXCEEDED, "the caller has gone") from None
    finally:
        for task in (running, gone):
            task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _timeout(request: Request) -> float | None:
    text = request.headers.get(TIMEOUT)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and int(text[:12]) > 0 and len(text) <= 12):
        raise error(Reason.INVALID_VALUE, "is a number of milliseconds, at least 1", TIMEOUT)
    return int(text) / 1000


def _peer(request: Request) -> str:
    return f"{request.client.host}:{request.client.port}" if request.client else ""
