"""Connect and gRPC-Web: the whole `cutaway.v1.InspectionService`, in binary and in JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from connectrpc.code import Code
from connectrpc.errors import ConnectError, ErrorDetail
from connectrpc.interceptor import MetadataInterceptor
from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType
from connectrpc.request import RequestContext
from connectrpc.server import ConnectASGIApplication, Endpoint
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import status_pb2
from protobuf import wkt
from starlette.types import Receive, Scope, Send

from cutaway.client.transport import SERVICE
from cutaway.errors import Code as StatusCode
from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.http import json_messages
from cutaway.gateway.http.http_call import HttpCall, Write
from cutaway.gateway.http.request_body import RequestBody
from cutaway.gateway.rpc.servicer import Servicer
from cutaway.v1 import inspection_service_pb2
from cutaway.wire import grpc_status

PATH = f"/{SERVICE}/"

_UNSERVED = ("application/grpc", "application/grpc+")
"""Content types of gRPC itself, whose trailers HTTP/1.1 servers do not send: it has a port of its own."""


_Context: TypeAlias = "RequestContext[Any, Any]"


class _Body(NamedTuple):
    """A message as it was sent, or will be: connectrpc neither reads nor writes it."""

    data: bytes
    is_json: bool


class _Codec:
    """Takes messages as they are."""

    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        return self._name

    def encode(self, message: _Body) -> bytes:
        return message.data

    def decode(self, data: bytes | bytearray, message_class: Any) -> _Body:
        return _Body(bytes(data), self._name == "json")


class _Methods(MetadataInterceptor[None]):
    """The methods of the service as endpoints, and who may call them."""

    def __init__(self, servicer: Servicer) -> None:
        self._servicer = servicer

    async def on_start(self, ctx: _Context) -> None:
        """Authenticates the caller, before the request is read."""
        call = _call(ctx)
        try:
            self._servicer.admit(call)
        except CutawayError as failure:
            with _as_connect_errors(call, ctx):
                await self._servicer.refuse(ctx.method.name, failure, call)

    def endpoints(self) -> dict[str, Any]:
        """Returns all of them by path."""
        service = inspection_service_pb2.DESCRIPTOR.services_by_name[SERVICE.rpartition(".")[2]]
        return {f"{PATH}{method.name}": self._endpoint(method) for method in service.methods}

    def _endpoint(self, method: Any) -> Any:
        request, reply = GetMessageClass(method.input_type), GetMessageClass(method.output_type)

        async def unary(body: _Body, ctx: _Context) -> _Body:
            call = _call(ctx)
            with _as_connect_errors(call, ctx):
                return await self._reply(method.name, request, reply, body, call)

        def stream(body: _Body, ctx: _Context) -> AsyncIterator[_Body]:
            return self._stream(method.name, request, reply, body, ctx)

        kind = StreamType.SERVER_STREAM if method.server_streaming else StreamType.UNARY
        info = MethodInfo(
            name=method.name,
            service_name=SERVICE,
            input=request,
            output=reply,
            idempotency_level=IdempotencyLevel.UNKNOWN,
            stream_type=kind,
        )
        return Endpoint.server_stream(info, stream) if method.server_streaming else Endpoint.unary(info, unary)

    async def _reply(
        self, name: str, request: type[Message], reply: type[Message], body: _Body, call: HttpCall
    ) -> _Body:
        data = await self._servicer.call(name, await self._binary(name, request, body, call), call)
        return await _as_sent(reply, data or b"", body)

    async def _stream(
        self, name: str, request: type[Message], reply: type[Message], body: _Body, ctx: _Context
    ) -> AsyncIterator[_Body]:
        messages: asyncio.Queue[bytes] = asyncio.Queue(1)
        call = _call(ctx, messages.put)
        with _as_connect_errors(call, ctx):
            data = await self._binary(name, request, body, call)
            running = asyncio.ensure_future(self._servicer.call(name, data, call))
            try:
                async for message in _until_done(messages, running):
                    yield await _as_sent(reply, message, body)
            finally:
                running.cancel()
                await asyncio.wait([running])

    async def _binary(self, name: str, request: type[Message], body: _Body, call: HttpCall) -> bytes:
        if not body.is_json:
            return body.data
        try:
            return await json_messages.as_binary(request, body.data)
        except CutawayError as failure:
            await self._servicer.refuse(name, failure, call)
            raise


async def _as_sent(kind: type[Message], data: bytes, request: _Body) -> _Body:
    """Returns a reply in the form of its request."""
    return _Body(await json_messages.as_text(kind, data) if request.is_json else data, request.is_json)


async def _until_done(messages: asyncio.Queue[bytes], running: asyncio.Future[Any]) -> AsyncIterator[bytes]:
    """Yields what is put into ``messages`` until ``running`` is done, and raises what it raised."""
    while True:
        waiting = asyncio.ensure_future(messages.get())
        try:
            await asyncio.wait([waiting, running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()  # of no effect if it is done
        if waiting.done():
            yield waiting.result()
            continue
        while not messages.empty():
            yield messages.get_nowait()
        await running
        return


def _call(ctx: _Context, write: Write | None = None) -> HttpCall:
    timeout_ms = ctx.timeout_ms
    headers = [(key.lower(), value) for key, value in ctx.request_headers.allitems()]
    call = HttpCall(headers, ctx.client_address or "", write)
    call.limit(None if timeout_ms is None else timeout_ms / 1000)
    return call


@contextmanager
def _as_connect_errors(call: HttpCall, ctx: _Context) -> Iterator[None]:
    """Sends the call's headers, and raises errors as Connect has them."""
    try:
        yield
    except CutawayError as failure:
        raise _connect_error(failure) from None
    finally:
        for key, value in call.reply_headers:
            ctx.response_headers[key] = value


def _connect_error(failure: CutawayError) -> ConnectError:
    status = status_pb2.Status.FromString(grpc_status.encode(failure))
    details = [ErrorDetail(wkt.Any(type_url=each.type_url, value=each.value)) for each in status.details]
    return ConnectError(Code[StatusCode(failure.code).name], status.message, details)


class ConnectApplication(ConnectASGIApplication[_Methods]):
    """The ASGI application.

    Args:
        servicer: answers the calls.
        timeout_s: how long a request may take to arrive.
        max_bytes: the largest request.
    """

    def __init__(self, servicer: Servicer, timeout_s: float, max_bytes: int) -> None:
        methods = _Methods(servicer)
        super().__init__(
            service=methods,
            endpoints=_Methods.endpoints,
            interceptors=[methods],
            read_max_bytes=None,  # RequestBody limits it
            compressions=(),  # tensors have one of their own; gzip would hold all other calls up
            codecs=[_Codec("proto"), _Codec("json")],
        )
        self._servicer = servicer
        self._timeout_s, self._max_bytes = timeout_s, max_bytes

    @property
    def path(self) -> str:
        """Where the service is."""
        return PATH.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        body = RequestBody(receive, self._timeout_s, self._max_bytes)

        async def limited() -> Any:
            try:
                return await body()
            except CutawayError as failure:
                raise _connect_error(failure) from None

        await super().__call__(scope, limited, send)


def refused(content_type: str) -> CutawayError | None:
    """Returns the error for a content type that another port serves."""
    if content_type in _UNSERVED or content_type.startswith(_UNSERVED[1]):
        return error(Reason.NOT_IMPLEMENTED, "gRPC has a port of its own; here are Connect, gRPC-Web and REST")
    return None
