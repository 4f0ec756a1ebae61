"""Connect and gRPC-Web: the whole `cutaway.v1.InspectionService`, in binary and in JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, TypeAlias

from connectrpc.code import Code
from connectrpc.errors import ConnectError, ErrorDetail
from connectrpc.interceptor import MetadataInterceptor
from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType
from connectrpc.request import RequestContext
from connectrpc.server import ConnectASGIApplication, Endpoint
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from google.rpc import status_pb2
from protobuf import wkt
from starlette.types import Message as StarletteMessage
from starlette.types import Receive, Scope, Send

from cutaway.client.transport import SERVICE
from cutaway.contract.errors import Code as StatusCode
from cutaway.contract.errors import CutawayError, Reason, error, release_frames
from cutaway.contract.wire import grpc_status
from cutaway.contract.wire.grpc_status import BytesCodec
from cutaway.server.http import json_messages
from cutaway.server.http.guarded import RequestBody
from cutaway.server.rpc.servicer import Servicer
from cutaway.server.rpc.status import TranslatedCall
from cutaway.v1 import inspection_service_pb2

PATH = f"/{SERVICE}/"

_UNSERVED = ("application/grpc", "application/grpc+")
"""Content types of gRPC itself, whose trailers HTTP/1.1 servers do not send: it has a port of its own."""


_REASONS = {
    Code.INVALID_ARGUMENT: Reason.MALFORMED_REQUEST,
    Code.DEADLINE_EXCEEDED: Reason.DEADLINE_EXCEEDED,
    Code.UNIMPLEMENTED: Reason.NOT_IMPLEMENTED,
}
"""Why connectrpc itself refuses a request: its messages, compression or deadline."""

_Context: TypeAlias = "RequestContext[Any, Any]"


class _Admission(MetadataInterceptor[None]):
    """An interceptor that authenticates callers before their requests are read, and keeps nothing of what failed."""

    def __init__(self, servicer: Servicer) -> None:
        self._servicer = servicer

    async def on_start(self, ctx: _Context) -> None:
        async with _translated(self._servicer, ctx) as call:
            self._servicer.admit(call.invocation_metadata(), call.peer())

    async def on_end(self, token: None, ctx: _Context, failure: Exception | None, /) -> None:
        """Releases the frames of an error, which refer to the request; connectrpc's own errors get a reason."""
        if isinstance(failure, ConnectError):
            release_frames(failure)
            if not failure.details and failure.code in _REASONS:
                raise _connect_error(error(_REASONS[failure.code], failure.message))


class _Method:
    """A method of the service as Connect calls it."""

    def __init__(self, servicer: Servicer, method: MethodDescriptor) -> None:
        self._servicer = servicer
        self._name = method.name
        self._request, self._reply = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        self._streams = method.server_streaming

    def endpoint(self) -> Any:
        """Returns the endpoint for connectrpc."""
        info = MethodInfo(
            name=self._name,
            service_name=SERVICE,
            input=self._request,
            output=self._reply,
            idempotency_level=IdempotencyLevel.UNKNOWN,
            stream_type=StreamType.SERVER_STREAM if self._streams else StreamType.UNARY,
        )
        return Endpoint.server_stream(info, self._stream) if self._streams else Endpoint.unary(info, self._unary)

    async def _unary(self, body: bytes, ctx: _Context) -> bytes:
        async with _translated(self._servicer, ctx) as call:
            reply = await self._servicer.call(self._name, await self._binary(body, ctx, call), call)
            return await self._as_sent(reply or b"", ctx, call)

    async def _stream(self, body: bytes, ctx: _Context) -> AsyncIterator[bytes]:
        async with _translated(self._servicer, ctx) as call:
            data = await self._binary(body, ctx, call)
            async with aclosing(self._servicer.stream(self._name, data, call)) as messages:
                async for message in messages:
                    yield await self._as_sent(message, ctx, call)

    async def _binary(self, body: bytes, ctx: _Context, call: TranslatedCall) -> bytes:
        """Returns a request as serialised protobuf, converted if it came as JSON.

        An ``Inspect`` call from a caller who may call no model is refused before that conversion: only the converted
        request names its model.
        """
        if not _is_json(ctx):
            return body
        if self._name.startswith("Inspect"):
            self._servicer.require_scopes()
        return await self._servicer.convert(partial(json_messages.binary_of, self._request), body, call)

    async def _as_sent(self, data: bytes, ctx: _Context, call: TranslatedCall) -> bytes:
        """Returns a reply in the form of its request."""
        if not _is_json(ctx):
            return data
        return await self._servicer.convert(partial(json_messages.text_of, self._reply), data, call)


def _is_json(ctx: _Context) -> bool:
    media_type = ctx.request_headers.get("content-type", "").partition(";")[0]
    return media_type.strip().lower().endswith("json")


def _endpoints(servicer: Servicer) -> dict[str, Any]:
    """Returns those of all methods, by path."""
    service = inspection_service_pb2.DESCRIPTOR.services_by_name[SERVICE.rpartition(".")[2]]
    return {f"{PATH}{method.name}": _Method(servicer, method).endpoint() for method in service.methods}


@asynccontextmanager
async def _translated(servicer: Servicer, ctx: _Context) -> AsyncIterator[TranslatedCall]:
    """Returns a context with the call as ``servicer`` takes it; sends its headers, and raises errors as Connect's."""
    timeout_ms = ctx.timeout_ms
    headers = [(key.lower(), value) for key, value in ctx.request_headers.allitems()]
    call = TranslatedCall(headers, f"http:{ctx.client_address or ''}")
    call.limit(None if timeout_ms is None else timeout_ms / 1000)
    try:
        async with servicer.reporting(ctx.method.name, call):
            yield call
    except CutawayError as failure:
        raise _connect_error(failure) from None
    finally:
        for key, value in call.reply_headers:
            ctx.response_headers[key] = value


def _connect_error(failure: CutawayError) -> ConnectError:
    status = status_pb2.Status.FromString(grpc_status.encode(failure))
    details = [ErrorDetail(wkt.Any(type_url=detail.type_url, value=detail.value)) for detail in status.details]
    return ConnectError(Code[StatusCode(failure.code).name], status.message, details)


def _with_length(send: Send) -> Send:
    """Returns a ``send`` that tells the length of a reply in one piece, which connectrpc does not."""
    head: list[StarletteMessage] = []

    async def sized(message: Any) -> None:
        if message["type"] == "http.response.start":
            head.append(message)
            return
        if head:
            start = head.pop()
            if not message.get("more_body", False):
                start["headers"] = [*start["headers"], (b"content-length", str(len(message["body"])).encode())]
            await send(start)
        await send(message)

    return sized


class ConnectApplication(ConnectASGIApplication[Servicer]):
    """The ASGI application of Connect and gRPC-Web.

    Args:
        servicer: answers the calls.
    """

    def __init__(self, servicer: Servicer) -> None:
        super().__init__(
            service=servicer,
            endpoints=_endpoints,
            interceptors=[_Admission(servicer)],
            read_max_bytes=None,  # RequestBody limits it
            compressions=(),  # tensors have one of their own; gzip would hold all other calls up
            codecs=[BytesCodec("proto"), BytesCodec("json")],
        )
        self._servicer = servicer

    @property
    def path(self) -> str:
        """The path of the service."""
        return PATH.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        with self._servicer.arriving() as held:
            body = RequestBody(scope, receive, self._servicer.settings, held)

            async def limited() -> Any:
                try:
                    return await body()
                except CutawayError as failure:
                    raise _connect_error(failure) from None

            await super().__call__(scope, limited, _with_length(send))


def refused(content_type: str) -> CutawayError | None:
    """Returns the error for a content type that another port serves."""
    if content_type in _UNSERVED or content_type.startswith(_UNSERVED[1]):
        return error(Reason.NOT_IMPLEMENTED, "gRPC has a port of its own; here are Connect, gRPC-Web and REST")
    return None
