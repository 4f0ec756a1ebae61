"""Guards HTTP requests: authentication, limits of time and size, and errors as problem details (RFC 9457)."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from http import HTTPStatus
from typing import Any, TypeAlias, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope

from cutaway.contract.errors import DOMAIN, Code, CutawayError, Reason, error, release_frames
from cutaway.contract.wire import grpc_status
from cutaway.server.batching import HeldBytes, within
from cutaway.server.rpc.servicer import Servicer
from cutaway.server.rpc.status import Headers, TranslatedCall
from cutaway.server.settings import Settings

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


def problem(failure: CutawayError, headers: Headers = (), media_type: str = MEDIA_TYPE) -> Response:
    """Returns the response for ``failure``, with ``headers``."""
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

Handler: TypeAlias = "Callable[[Request, TranslatedCall, RequestBody], Awaitable[Response]]"

T = TypeVar("T")


def guarded(
    servicer: Servicer,
    name: str,
    handler: Handler,
    media_type: str = MEDIA_TYPE,
    flags: Collection[str] | None = (),
) -> Callable[[Request], Awaitable[Response]]:
    """Returns ``handler`` for callers who may call the method ``name``.

    Args:
        servicer: knows the callers, and reports the calls.
        name: the method of the service.
        handler: answers.
        media_type: that of errors.
        flags: the parameters that a URL may have, without a value or as true; None leaves them to ``handler``.
    """

    async def answer(request: Request) -> Response:
        call = TranslatedCall(request.headers.items(), f"http:{_peer(request)}")
        try:
            async with servicer.reporting(name, call):
                call.limit(_timeout(request))
                servicer.admit(call.invocation_metadata(), call.peer())
                if flags is not None:
                    _check_flags(request, flags)
                with servicer.arriving() as held:
                    body = RequestBody(request.scope, request.receive, servicer.settings, held)
                    try:
                        response = await handler(request, call, body)
                    except CutawayError:
                        await body.discard()
                        raise
            response.headers.update(dict(call.reply_headers))
        except CutawayError as failure:
            release_frames(failure)
            return problem(failure, call.reply_headers, media_type)
        except Exception as failure:
            log.error("unexpected exception in a call", exc_info=failure)
            return problem(error(Reason.INTERNAL, type(failure).__name__), call.reply_headers, media_type)
        return response

    return answer


_DISCARDED = 4
"""How much of a refused request is received, in largest requests."""

_FLOWS_S = 0.5
"""How long a refused request may pause; then its reply is sent."""


_PART_BYTES = 4096


class RequestBody:
    """The body of a request, with limits of its size and of the time that it may take to arrive.

    Args:
        scope: the request without its body.
        receive: the server's own.
        settings: the limits.
        held: counts the bytes that have arrived.

    Attributes:
        max_bytes: the largest size, of unpacked arrays too.
    """

    def __init__(self, scope: Scope, receive: Receive, settings: Settings, held: HeldBytes) -> None:
        self.max_bytes = settings.max_message_bytes
        headers = dict(scope["headers"])
        self._announced = int(headers.get(b"content-length", 0))
        self._encoding = headers.get(b"content-encoding", b"identity").decode("latin-1")
        self._held = held
        self._receive = receive
        self._timeout_s = settings.receive_timeout_s
        self._until = asyncio.get_running_loop().time() + self._timeout_s
        self._bytes = 0
        self._complete = False

    async def __call__(self) -> Message:
        """Returns the next ASGI message.

        Raises:
            CutawayError: ``DEADLINE_EXCEEDED`` or ``REQUEST_TOO_LARGE``; ``OVERLOADED`` if there is no room for it.
        """
        if self._complete:  # what comes now is the end of the connection, at any time
            return await self._receive()
        await self._refuse_large(self._announced)
        message = await self._next()
        await self._refuse_large(self._bytes)
        self._held.add(len(message.get("body", b"")))
        return message

    async def _next(self, patience_s: float = math.inf) -> Message:
        """Receives the next ASGI message; raises ``DEADLINE_EXCEEDED`` if the body is late, or after ``patience_s``."""
        left = self._until - asyncio.get_running_loop().time()
        try:
            message = await within(max(0.0, min(left, patience_s)), self._receive())
        except asyncio.TimeoutError:
            raise error(Reason.DEADLINE_EXCEEDED, f"the request did not arrive within {self._timeout_s:g} s") from None
        self._bytes += len(message.get("body", b""))
        self._complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def _refuse_large(self, size: int) -> None:
        if size > self.max_bytes:
            await self.discard()
            what = f"the request has more than the {self.max_bytes} bytes that are allowed"
            raise error(Reason.REQUEST_TOO_LARGE, what)

    async def discard(self) -> None:
        """Receives the rest of a refused request while it flows, up to a size, and keeps nothing: many callers send
        all of a request before they read the reply."""
        self._held.release()
        with suppress(CutawayError):
            while not self._complete and self._bytes < _DISCARDED * self.max_bytes:
                await self._next(_FLOWS_S)

    async def read(self) -> bytes:
        """Returns the whole body.

        Raises:
            CutawayError: as a call of this object; ``MALFORMED_REQUEST`` if the connection ends before;
                ``NOT_IMPLEMENTED``, for a compressed one.
        """
        if self._encoding != "identity":
            what = f"{self._encoding!r:.40} is not served: send the request as it is"
            raise error(Reason.NOT_IMPLEMENTED, what, "content-encoding")
        parts = [b""]
        try:
            while not self._complete:
                message = await self()
                if message["type"] != "http.request":
                    raise error(Reason.MALFORMED_REQUEST, "the connection ended before its request was sent")
                body = message.get("body", b"")
                if len(parts[-1]) < _PART_BYTES:  # a part of one byte would take forty
                    parts[-1] += body
                else:
                    parts.append(body)
            return b"".join(parts)
        finally:
            parts.clear()  # an error has this frame


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
        running.cancel()
        gone.cancel()
        del running  # it has the error, which has this frame, and those of the request


async def _gone(request: Request) -> None:
    """Returns when the caller has ended the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _check_flags(request: Request, flags: Collection[str]) -> None:
    for name, text in request.query_params.multi_items():
        if name not in flags:
            known = f"; there are {', '.join(flags)}" if flags else ""
            raise error(Reason.INVALID_VALUE, f"is no parameter of this URL{known}", f"{name:.60}")
        if text not in ("", "true"):
            raise error(Reason.INVALID_VALUE, "is true, or left out", name)


def _timeout(request: Request) -> float | None:
    text = request.headers.get(TIMEOUT)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and int(text[:12]) > 0 and len(text) <= 12):
        raise error(Reason.INVALID_VALUE, "is a number of milliseconds, at least 1", TIMEOUT)
    return int(text) / 1000


def _peer(request: Request) -> str:
    return f"{request.client.host}:{request.client.port}" if request.client else "unix:"


async def no_route(request: Request, failure: Any) -> Response:
    """Returns the problem details for an unknown path or an unsupported HTTP method."""
    known = {"type": "about:blank", "title": failure.detail, "status": failure.status_code}
    headers = dict(failure.headers or {})
    if failure.status_code == HTTPStatus.METHOD_NOT_ALLOWED and (methods := _methods(request)):
        headers["Allow"] = ", ".join(methods)
    return Response(json.dumps(known), failure.status_code, headers, MEDIA_TYPE)


def _methods(request: Request) -> list[str]:
    """Returns the HTTP methods of the URL's routes; a route knows only its own."""
    path = request.scope["route"].path
    routes = [route for route in request.app.routes if isinstance(route, Route) and route.path == path]
    return sorted({method for route in routes for method in route.methods or ()})
