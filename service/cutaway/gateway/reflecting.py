"""Reflection, where there are tokens: the contract is shown to callers who may look inside a model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio
from grpc_reflection.v1alpha import reflection

from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.access import Scope
from cutaway.gateway.tokens import Doorkeeper
from cutaway.wire import status

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
Continuation: TypeAlias = Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]


class Reflecting(grpc.aio.ServerInterceptor):
    """Refuses reflection to callers who may look inside no model.

    Args:
        doorkeeper: tells who calls.
    """

    def __init__(self, doorkeeper: Doorkeeper) -> None:
        self._doorkeeper = doorkeeper

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        """The same method, or one that refuses."""
        if handler_call_details.method.startswith(f"/{reflection.SERVICE_NAME}/"):
            try:
                caller = self._doorkeeper.caller(handler_call_details.invocation_metadata or ())
                if not caller.may(Scope.INSPECT):
                    raise error(Reason.SCOPE_MISSING, "this token may inspect no model")
            except CutawayError as failure:
                return _refusing(failure)
        return await continuation(handler_call_details)


def _refusing(failure: CutawayError) -> grpc.RpcMethodHandler[Any, Any]:
    async def refuse(_: Any, context: Any) -> None:
        code = next(code for code in grpc.StatusCode if code.value[0] == failure.code)
        await context.abort(code, status.text(failure), ((status.DETAILS_KEY, status.encode(failure)),))

    return grpc.stream_stream_rpc_method_handler(refuse)
