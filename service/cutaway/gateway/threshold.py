"""Who calls is found out before what they send is read: a stranger's request takes no memory of the server's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeAlias

import grpc

from cutaway.errors import CutawayError
from cutaway.gateway.access import Caller
from cutaway.gateway.tokens import Doorkeeper

Method: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

calling: ContextVar[Caller] = ContextVar("cutaway_caller")
"""Who calls, for the task that answers."""


class Threshold(grpc.GenericRpcHandler):
    """Picks who answers a call: its method, or where the caller is nobody, what says so.

    Args:
        methods: by their paths.
        doorkeeper: tells who calls.
        refusing: a method that says why, made for a path. It reads no request.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        doorkeeper: Doorkeeper,
        refusing: Callable[[str, CutawayError], Method],
    ) -> None:
        self._methods = methods
        self._doorkeeper = doorkeeper
        self._refusing = refusing

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Method | None:
        """Who answers; None, where it is no method of ours."""
        path: Any = handler_call_details.method  # the stubs take it for bytes
        method = self._methods.get(path)
        if method is None:
            return None
        try:
            calling.set(self._doorkeeper.caller(handler_call_details.invocation_metadata or ()))
        except CutawayError as failure:
            return self._refusing(path, failure)
        return method
