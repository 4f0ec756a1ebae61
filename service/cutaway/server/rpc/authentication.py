"""Authenticates callers by the metadata of a call, before the request is read.

Requests of unknown callers take no memory of the server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any

import grpc
import grpc.aio
from grpc_reflection.v1alpha import reflection

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.server.auth.authorization import Caller, Scope
from cutaway.server.auth.token_file import Authenticator
from cutaway.server.observability.call_watch import CallWatch, Method
from cutaway.server.rpc.receiving import Handler
from cutaway.server.rpc.status import Context, refusing

current_caller: ContextVar[Caller] = ContextVar("cutaway_caller")
"""The caller of the current task's call."""


class AuthenticatingHandler(grpc.GenericRpcHandler):
    """A gRPC handler that authenticates callers: it returns the handler of a method, or one that refuses the call.

    Args:
        handlers: the handlers by the methods' paths.
        names: the methods' names by their paths, for reports of refused calls.
        authenticator: returns the caller.
        watch: reports refused calls to observers.
        require_room: raises an error if no further request may be read.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        names: Mapping[str, str],
        authenticator: Authenticator,
        watch: CallWatch,
        require_room: Callable[[], None],
    ) -> None:
        self._handlers = handlers
        self._names = names
        self._authenticator = authenticator
        self._watch = watch
        self._require_room = require_room

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """Returns the handler; None for an unknown method."""
        path: Any = handler_call_details.method  # bytes in the stubs, but a string
        handler = self._handlers.get(path)
        if handler is None:
            return None
        try:
            metadata = handler_call_details.invocation_metadata or ()
            current_caller.set(self._authenticator(metadata))
            self._require_room()
        except CutawayError as failure:
            return refusing_handler(failure, partial(self._watch.wrap, self._names[path]))
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


def refusing_handler(failure: CutawayError, wrap: Callable[[Method], Method] = lambda method: method) -> Handler:
    """Returns a handler that refuses calls with ``failure``. Its requests are a stream, of which it reads nothing."""
    wrapped = wrap(refusing(failure))

    async def without_request(_: object, context: Context) -> None:
        await wrapped(b"", context)

    return grpc.stream_stream_rpc_method_handler(without_request)
