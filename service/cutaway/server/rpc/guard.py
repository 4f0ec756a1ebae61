"""Guards a call before its request is read: authenticates the caller, and limits the time of arrival.

Requests of unknown callers take no memory of the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

import grpc
import grpc.aio
from grpc_reflection.v1alpha import reflection

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.server.auth.tokens import Authenticator, Scope
from cutaway.server.deadlines import Deadlines
from cutaway.server.observability.call_watch import Method
from cutaway.server.rpc.status import Context, Metadata, abort

# gRPC waits for the rest of a request for as long as its connection lives. So the methods take it as a stream of one
# message, and read it themselves. On the wire a unary call is the same. An interceptor would slow down every call.

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Refuse: TypeAlias = Callable[[CutawayError, Context], Awaitable[None]]
GrpcContext: TypeAlias = Any
"""A `grpc.aio.ServicerContext`, which reads requests too; the stubs' methods differ from `Context` in small things."""

_END_OF_REQUESTS: object = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs


def receiving(method: Method, refuse: Refuse, timeout_s: float, *, streams: bool) -> Handler:
    """Returns the handler of ``method``.

    Args:
        method: handles a serialised request.
        refuse: ends a call whose request did not arrive.
        timeout_s: how long the request may take to arrive.
        streams: whether the method writes a stream of replies.
    """
    reader = RequestReader(timeout_s)

    async def handle(_: object, context: GrpcContext) -> bytes | None:
        try:
            received = [await reader.read(context)]
        except CutawayError as failure:
            await refuse(failure, context)
            return None
        try:
            return await method(received.pop(), context)  # which alone has it, and may free it
        except grpc.aio.AbortError as ended:
            # gRPC keeps it, and so the frames of its traceback in a cycle: with the request, until the next collection.
            ended.__context__ = None
            raise ended.with_traceback(None) from None

    make: Any = grpc.stream_stream_rpc_method_handler if streams else grpc.stream_unary_rpc_method_handler
    handler: Handler = make(handle)
    return handler


class TimeLimitedServices(grpc.GenericRpcHandler):
    """A stand-in for a server, to which gRPC's own services are added; it limits the time of their requests.

    Args:
        timeout_s: how long a request may take to arrive; also the next one of a stream.
    """

    def __init__(self, timeout_s: float) -> None:
        self._reader = RequestReader(timeout_s)
        self._services: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Adds the methods of a service."""
        self._services += handlers

    def add_registered_method_handlers(self, service_name: str, method_handlers: object) -> None:
        """Does nothing, as in grpc.aio: the methods are the same."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """Returns the handler of a method; None for an unknown one."""
        found = filter(None, (service.service(handler_call_details) for service in self._services))
        return next((time_limited(handler, self._reader) for handler in found), None)


def time_limited(handler: Any, reader: RequestReader) -> Handler:
    """Returns a handler that reads the requests of ``handler`` by ``reader``."""

    async def handle_one(_: object, context: GrpcContext) -> Any:
        return await (handler.unary_unary or handler.unary_stream)(await receive(context), context)

    async def handle_stream(_: object, context: GrpcContext) -> AsyncIterator[Any]:
        async for reply in handler.stream_stream(receive_all(context), context):
            yield reply

    async def receive_all(context: GrpcContext) -> AsyncIterator[Any]:
        while (request := await receive(context, required=False)) is not _END_OF_REQUESTS:
            yield request

    async def receive(context: GrpcContext, *, required: bool = True) -> Any:
        try:
            return await reader.read(context, required=required)
        except CutawayError as failure:
            return await abort(failure, context)

    coding = handler.request_deserializer, handler.response_serializer
    if handler.request_streaming:
        return grpc.stream_stream_rpc_method_handler(handle_stream, *coding)
    if handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(handle_one, *coding)
    return grpc.stream_unary_rpc_method_handler(handle_one, *coding)


class RequestReader:
    """Reads requests, which may take ``timeout_s`` seconds to arrive each."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        # Not by a task of its own for each, as `within` does: that is a tenth of the gateway's time.
        self._waiting: Deadlines[asyncio.Task[Any]] = Deadlines(asyncio.Task.cancel)

    async def read(self, context: GrpcContext, *, required: bool = True) -> Any:
        """Returns the next request of a call; `_END_OF_REQUESTS` after the last one, unless one is ``required``.

        Raises:
            CutawayError: ``DEADLINE_EXCEEDED``, or ``MALFORMED_REQUEST`` if the caller sends none.
        """
        task: Any = asyncio.current_task()
        self._waiting.add(task, self._timeout_s)
        try:
            request: object = await context.read()
        except asyncio.CancelledError:
            if task in self._waiting:
                raise
            # The call ends either way, also if gRPC cancelled it at the same moment.
            what = f"the request did not arrive within {self._timeout_s:g} s"
            raise error(Reason.DEADLINE_EXCEEDED, what) from None
        finally:
            self._waiting.discard(task)
        if request is _END_OF_REQUESTS and required:
            raise error(Reason.MALFORMED_REQUEST, "the call ended before its request was sent")
        return request


class AuthenticatingHandler(grpc.GenericRpcHandler):
    """A gRPC handler that authenticates callers: it returns the handler of a method, or one that refuses the call.

    Args:
        handlers: the handlers by the methods' paths, each with the name of the method for observers.
        admit: raises an error for a caller, given the metadata, whose request may not be read.
        refuse: ends a call of the method with that name, and reports it to observers.
    """

    def __init__(
        self,
        handlers: Mapping[str, tuple[str, Handler]],
        admit: Callable[[Metadata], None],
        refuse: Callable[[str, CutawayError, Context], Awaitable[None]],
    ) -> None:
        self._handlers = handlers
        self._admit = admit
        self._refuse = refuse

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """Returns the handler; None for an unknown method."""
        path: Any = handler_call_details.method  # bytes in the stubs, but a string
        if path not in self._handlers:
            return None
        name, handler = self._handlers[path]
        try:
            self._admit(handler_call_details.invocation_metadata or ())
        except CutawayError as failure:
            return refusing_handler(failure, partial(self._refuse, name))
        return handler


class ReflectionGuard(grpc.aio.ServerInterceptor):
    """An interceptor that refuses gRPC reflection to callers who may inspect no model.

    It is used if there is a token file.
    """

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Returns the method's handler, or one that refuses the call."""
        if handler_call_details.method.startswith(f"/{reflection.SERVICE_NAME}/"):
            try:
                caller = self._authenticator(handler_call_details.invocation_metadata or ())
                if not caller.has_scope(Scope.INSPECT):
                    raise error(Reason.SCOPE_MISSING, "this token may inspect no model")
            except CutawayError as failure:
                return refusing_handler(failure)
        return await continuation(handler_call_details)


def refusing_handler(failure: CutawayError, refuse: Refuse = abort) -> Handler:
    """Returns a handler that refuses calls with ``failure``. Its requests are a stream, of which it reads nothing."""

    async def without_request(_: object, context: Context) -> None:
        await refuse(failure, context)

    return grpc.stream_stream_rpc_method_handler(without_request)
