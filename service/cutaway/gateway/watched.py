"""Each call of ours, watched from outside the servicer: what was asked, how it ended, how long it took.

What only the servicer learns on the way (the model, the stages) it notes in `observed`.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import grpc
import grpc.aio

from cutaway import propagation
from cutaway.errors import Reason
from cutaway.results import ModelName
from cutaway.wire import status
from cutaway.wire.glance import Glance

REQUEST_ID = "x-request-id"
"""The metadata that a call's name travels in, both ways."""

_NAME = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
"""What a caller may name a call: nothing that breaks a line of a log."""

_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_NO_MODEL = ModelName("", "")
_REASONS = frozenset(Reason)

Answer: TypeAlias = Callable[[bytes, Any], Awaitable[Any]]
"""Answers a call's bytes, in its context: with bytes, or by writing them there."""


@dataclass(eq=False)
class Call:
    """One call, as far as it has come.

    Attributes:
        method: ``Inspect``, ...
        request_id: what its caller named it, or a name made up.
        peer: where it comes from.
        traceparent: the span that it belongs to, as W3C Trace Context spells it; empty for none.
        model: which one is asked, once that is known to be served.
        request_bytes: its size.
        reply_bytes: of what has been answered.
        seen: what the reply said of itself.
        code: the gRPC status, once it has ended.
        reason: of the error; empty without one.
        started: by `time.perf_counter`.
        seconds: how long it took, once it has ended.
    """

    method: str
    request_id: str
    peer: str
    traceparent: str = ""
    model: ModelName = _NO_MODEL
    request_bytes: int = 0
    reply_bytes: int = 0
    seen: Glance = field(default_factory=lambda: Glance({}))
    code: str = "OK"
    reason: str = ""
    started: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0


class Observer(Protocol):
    """Is told of calls. What it raises costs no call."""

    def began(self, call: Call) -> None:
        """``call`` has come."""

    def ended(self, call: Call) -> None:
        """All of ``call`` is known."""


_current: ContextVar[Call] = ContextVar("cutaway_call")


def observed() -> Call:
    """The call that this task answers; one that nobody looks at, where it answers none."""
    return _current.get(None) or Call("", "", "")


def lineage() -> dict[str, bytes]:
    """The part of a row that tells a worker which span this task's call belongs to; none, where there is no span."""
    call = _current.get(None)
    return {propagation.PART: call.traceparent.encode()} if call and call.traceparent else {}


class Watch:
    """Tells observers of every call of the methods that it stands around.

    Args:
        observers: told in this order when a call begins, in the other one when it ends.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def around(self, method: str, answer: Answer) -> Answer:
        """``answer``, which serves ``method``, watched; with an interceptor gRPC would make it anew for each call."""

        async def watched(data: bytes, context: Any) -> Any:
            metadata = {item[0]: item[1] for item in context.invocation_metadata() or ()}
            call = Call(
                method,
                _matching(_NAME, metadata.get(REQUEST_ID)) or secrets.token_hex(16),
                context.peer(),
                _matching(_TRACEPARENT, metadata.get("traceparent")),
                request_bytes=len(data),
            )
            context.set_trailing_metadata(((REQUEST_ID, call.request_id),))
            async with self._told(call, context):
                reply = await answer(data, context)
                if reply is not None:  # a stream's have been counted on their way
                    call.reply_bytes = len(reply)
                return reply

        return watched

    @asynccontextmanager
    async def _told(self, call: Call, context: Any) -> AsyncIterator[None]:
        token = _current.set(call)
        for each in self._observers:
            with suppress(Exception):
                each.began(call)
        try:
            yield
        except asyncio.CancelledError:
            left = context.time_remaining()
            _end(call, *(_LATE if left is not None and left <= 0 else _HUNG_UP))
            raise
        except Exception:
            _end(call, *_status(context))
            raise
        finally:
            call.seconds = time.perf_counter() - call.started
            for each in reversed(self._observers):
                with suppress(Exception):
                    each.ended(call)
            _current.reset(token)


_HUNG_UP = ("CANCELLED", "")
_LATE = ("DEADLINE_EXCEEDED", str(Reason.DEADLINE_EXCEEDED))


def _end(call: Call, code: str, reason: str) -> None:
    call.code, call.reason = code, reason


def _status(context: Any) -> tuple[str, str]:
    """The status that a call was aborted with, and its reason, which no caller and no model makes up."""
    code: grpc.StatusCode = context.code() or grpc.StatusCode.UNKNOWN
    reason = status.decode(code.value[0], "", context.trailing_metadata() or ()).reason
    return code.name, reason if reason in _REASONS else "OTHER"


def _matching(pattern: re.Pattern[str], word: str | bytes | None) -> str:
    """``word``, where it is all that ``pattern`` allows; else nothing."""
    return word if isinstance(word, str) and pattern.fullmatch(word) else ""
