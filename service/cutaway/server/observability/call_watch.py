"""Observes calls from outside the servicer: method, outcome, duration.

The servicer writes what it alone learns (the model, the stages) to `current_call`.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any, Protocol, TypeAlias

import grpc
import grpc.aio

from cutaway.contract.errors import Reason
from cutaway.contract.results import ModelName
from cutaway.contract.wire import grpc_status
from cutaway.contract.wire.results import ReplySummary, summarize
from cutaway.v1 import worker_pb2

REQUEST_ID = "x-request-id"
"""The metadata key of a call's id, in requests and in trailers."""

_REQUEST_ID_PATTERN = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
"""The ids that callers may choose: none of them breaks a line of a log."""

_TRACEPARENT_PATTERN = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_NO_MODEL = ModelName("", "")
_REASONS = frozenset(Reason)

Method: TypeAlias = Callable[[bytes, Any], Awaitable[bytes | None]]
"""A function that handles a serialised request in its gRPC context.

It returns the reply, or None after it has written a stream.
"""


@dataclass(eq=False)
class CallRecord:
    """One call of the service.

    Attributes:
        method: ``Inspect``, ...
        request_id: chosen by the caller, or generated.
        peer: the caller's address.
        traceparent: the call's span in W3C Trace Context format; empty for none.
        model: the requested model, if it is served.
        request_bytes: size of the request.
        reply_bytes: size of the reply so far.
        reply: the values that a worker sent beside the response, if any.
        code: gRPC status, once the call has ended.
        reason: reason of the error; empty without an error.
        started: `time.perf_counter` at the start.
        seconds: duration, once the call has ended.
    """

    method: str
    request_id: str
    peer: str
    traceparent: str = ""
    model: ModelName = _NO_MODEL
    request_bytes: int = 0
    reply_bytes: int = 0
    reply: worker_pb2.WorkerReply | None = None
    code: str = "OK"
    reason: str = ""
    started: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0

    @cached_property
    def summary(self) -> ReplySummary:
        """Stages and checks of the reply."""
        return ReplySummary({}) if self.reply is None else summarize(self.reply)


class Observer(Protocol):
    """An observer of calls, which gets every call at its start and end; its exceptions are ignored."""

    def call_started(self, call: CallRecord) -> None:
        """Handles the start of ``call``."""

    def call_ended(self, call: CallRecord) -> None:
        """Handles the end of ``call``, with all its attributes set."""


_current: ContextVar[CallRecord] = ContextVar("cutaway_call")


def current_call() -> CallRecord:
    """Returns the call that the current task handles; outside of calls, a record that no observer gets."""
    return _current.get(None) or CallRecord("", "", "")


class CallWatch:
    """A watch that reports the calls of wrapped methods to observers.

    Args:
        observers: called in this order at the start of a call, and in reverse order at its end, behind its reply.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers
        self._ended: deque[CallRecord] = deque()
        self._reporting = Lock()

    def wrap(self, name: str, method: Method) -> Method:
        """Returns ``method``, observed. An interceptor would make gRPC rebuild the method for every call."""

        async def observed(data: bytes, context: Any) -> bytes | None:
            metadata = {item[0]: item[1] for item in context.invocation_metadata() or ()}
            call = CallRecord(
                name,
                _matching(_REQUEST_ID_PATTERN, metadata.get(REQUEST_ID)) or os.urandom(16).hex(),
                context.peer(),
                _matching(_TRACEPARENT_PATTERN, metadata.get("traceparent")),
                request_bytes=len(data),
            )
            context.set_trailing_metadata(((REQUEST_ID, call.request_id),))
            token = _current.set(call)
            self._started(call)
            try:
                reply = await method(data, context)
                if reply is not None:  # messages of a stream were counted when they were written
                    call.reply_bytes = len(reply)
                return reply
            except asyncio.CancelledError:
                left = context.time_remaining()
                late = left is not None and left <= 0
                call.code = "DEADLINE_EXCEEDED" if late else "CANCELLED"
                call.reason = str(Reason.DEADLINE_EXCEEDED) if late else ""
                raise
            except Exception:
                call.code, call.reason = _status(context)
                raise
            finally:
                _current.reset(token)
                self._end(call)

        return observed

    def _started(self, call: CallRecord) -> None:
        for observer in self._observers:
            with suppress(Exception):
                observer.call_started(call)

    def _end(self, call: CallRecord) -> None:
        """Has ``call`` reported once its reply is on its way: a line of a log takes as long as a small reply."""
        call.seconds = time.perf_counter() - call.started
        if not self._ended:
            asyncio.get_running_loop().call_soon(self.report)
        self._ended.append(call)

    def report(self) -> None:
        """Reports the calls that have ended, from any thread; whoever has a reply finds its call reported behind it."""
        with self._reporting:
            while self._ended:
                call = self._ended.popleft()
                token = _current.set(call)
                for observer in reversed(self._observers):
                    with suppress(Exception):
                        observer.call_ended(call)
                _current.reset(token)


def _status(context: Any) -> tuple[str, str]:
    """Returns the status of an aborted call and its reason; ``OTHER`` for a reason that is not in the contract."""
    code: grpc.StatusCode = context.code() or grpc.StatusCode.UNKNOWN
    reason = grpc_status.decode(code.value[0], "", context.trailing_metadata() or ()).reason
    return code.name, reason if reason in _REASONS else "OTHER"


def _matching(pattern: re.Pattern[str], text: str | bytes | None) -> str:
    """Returns ``text`` if all of it matches ``pattern``, otherwise the empty string."""
    return text if isinstance(text, str) and pattern.fullmatch(text) else ""
