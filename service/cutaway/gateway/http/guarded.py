"""Handlers of requests by HTTP: who may call, how long a call may take, and what its errors look like."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.http.http_call import Headers, HttpCall
from cutaway.gateway.http.problem import problem
from cutaway.gateway.rpc.servicer import Servicer

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
