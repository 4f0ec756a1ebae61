"""Calls by other protocols: how they end, as those of gRPC, and a few threads that convert what they send and get.

The event loop answers all callers, and converts only what is small. Each thread that runs Python makes the loop wait
for its turn; so of the large messages one is converted at a time. A conversion that is late goes on in its thread, and
its caller has that thread until it ends.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar

import grpc

from cutaway.contract.errors import CutawayError, Reason, error, of_exception, release_frames
from cutaway.contract.wire import grpc_status
from cutaway.server.batching import FairSlots

log = logging.getLogger(__name__)  # structlog's tracebacks show the values of variables, unless it is configured

Metadata: TypeAlias = "Sequence[tuple[str, str | bytes]]"
Headers: TypeAlias = Sequence[tuple[str, str]]
Write: TypeAlias = Callable[[bytes], Awaitable[None]]


class Context(Protocol):
    """The context of a call by any protocol; a `grpc.aio.ServicerContext` and a `TranslatedCall` are such."""

    def invocation_metadata(self) -> Metadata | None:
        """Returns the metadata that the caller sent with the request; keys are lower case."""

    def peer(self) -> str:
        """Returns the caller's address."""

    def time_remaining(self) -> float | None:
        """Returns the seconds until the deadline; None without one."""

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Sets the metadata that is sent after the reply."""

    def trailing_metadata(self) -> Metadata | None:
        """Returns the metadata that is sent after the reply."""

    def code(self) -> grpc.StatusCode | None:
        """Returns the status of a call that was aborted."""

    def write(self, message: bytes) -> Awaitable[None]:
        """Sends a message of a streamed reply; done when there is room for the next one."""

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: Metadata) -> NoReturn:
        """Ends the call with an error; always raises."""


class TranslatedCall:
    """A call that came by another protocol than ours: its errors are raised, for the protocol to translate.

    Args:
        headers: of the request, keys in lower case.
        peer: the caller's address.
    """

    def __init__(self, headers: Metadata, peer: str) -> None:
        self._headers = headers
        self._peer = peer
        self._deadline: float | None = None
        self._write: Write | None = None
        self._trailers: Metadata = ()
        self._code: grpc.StatusCode | None = None

    def limit(self, timeout_s: float | None) -> None:
        """Sets how long the call may take from now on; None is the server's default."""
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def send_by(self, write: Write) -> None:
        """Sets what sends a message of a streamed reply."""
        self._write = write

    def invocation_metadata(self) -> Metadata:
        """Returns the headers."""
        return self._headers

    def peer(self) -> str:
        """Returns the caller's address."""
        return self._peer

    def time_remaining(self) -> float | None:
        """Returns the seconds until the deadline; None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Sets what is sent with the reply."""
        self._trailers = metadata

    def trailing_metadata(self) -> Metadata:
        """Returns what is sent with the reply: the id of the request, once observers know the call."""
        return self._trailers

    @property
    def reply_headers(self) -> Headers:
        """The metadata of the reply, as headers."""
        return [(key, value) for key, value in self._trailers if isinstance(value, str)]

    def code(self) -> grpc.StatusCode | None:
        """Returns the status of a call that was aborted."""
        return self._code

    async def write(self, message: bytes) -> None:
        """Sends a message of a streamed reply."""
        if self._write is None:
            raise RuntimeError("a call with one reply has no stream")
        await self._write(message)

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: Metadata) -> NoReturn:
        """Ends the call with an error.

        Raises:
            CutawayError: the error.
        """
        self._code, self._trailers = code, trailing_metadata
        raise grpc_status.decode(code.value[0], details, trailing_metadata)


_EXHAUSTED = {
    errno.EMFILE: "the server has no file descriptor left",
    errno.ENFILE: "the server's machine has no file descriptor left",
    errno.ENOSPC: "the server's disk for temporary files is full",
}

_CODES = {code.value[0]: code for code in grpc.StatusCode}


async def abort_with(context: Context, failure: Exception) -> None:
    """Ends the call with the status of any error, and logs one that the contract does not have; always raises."""
    if (known := of_exception(failure)) is not None:
        release_frames(failure)
        await abort(known, context)
    if isinstance(failure, OSError) and failure.errno in _EXHAUSTED:
        await abort(error(Reason.OVERLOADED, f"{_EXHAUSTED[failure.errno]}; try again"), context)
    log.error("unexpected exception in a call", exc_info=failure)
    await abort(error(Reason.INTERNAL, type(failure).__name__), context)


async def abort(failure: CutawayError, context: Context) -> None:
    """Ends the call with the status of ``failure``; always raises."""
    details = (grpc_status.DETAILS_KEY, grpc_status.encode(failure))
    await context.abort(
        _CODES[failure.code], grpc_status.text(failure), (*(context.trailing_metadata() or ()), details)
    )


T = TypeVar("T")

_THREADS = 4
"""One caller has at most half of them. More would not be faster: Python runs one at a time."""

_SMALL_BYTES = 1 << 12
"""The size up to which a message is converted at once: a few hundred entries, which take less than a millisecond."""

_LARGE_BYTES = 1 << 18
"""The size above which a message is converted alone: it takes from 20 milliseconds to a second."""

_COPIED_BYTES = 1 << 20
"""The size up to which a message is copied at once."""


class Translator:
    """Threads for conversions."""

    def __init__(self) -> None:
        self._slots, self._turns = FairSlots(_THREADS), FairSlots(1)
        self._threads = ThreadPoolExecutor(_THREADS + 1, "cutaway-translation")
        self._running: set[asyncio.Task[Any]] = set()

    async def convert(
        self, function: Callable[[bytes], T], data: bytes, timeout_s: float, cost: int | None = None
    ) -> T:
        """Returns what ``function`` makes of ``data``, for the current task's caller.

        It is the only one that has ``data``, if its caller keeps no reference: what it deletes is free.

        Args:
            function: converts a message.
            data: the message.
            timeout_s: how long that may take.
            cost: the bytes of ``data`` that are parsed, if it only copies the others.

        Raises:
            CutawayError: ``DEADLINE_EXCEEDED``, or what ``function`` raises.
        """
        cost = len(data) if cost is None else cost
        if cost <= _SMALL_BYTES and len(data) <= _COPIED_BYTES:
            return function(data)
        left = [data]
        del data
        task = asyncio.ensure_future(self._in_thread(function, left, timeout_s, cost > _LARGE_BYTES))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            if await _done_within(task, timeout_s):
                return task.result()
        except asyncio.TimeoutError:
            pass
        finally:
            if left:  # it waits for a thread
                task.cancel()
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # else asyncio logs it
            del task  # it has the error, which has this frame: the request would stay until the next collection
        raise error(Reason.DEADLINE_EXCEEDED, f"the message was not converted within {timeout_s:g} s")

    async def _in_thread(self, function: Callable[[bytes], T], left: list[bytes], timeout_s: float, alone: bool) -> T:
        """Waits for a fair slot, then converts the message in a thread; ``left`` is empty once that begins."""
        async with (self._turns if alone else self._slots).slot(timeout_s):
            run = copy_context().run
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, lambda: run(lambda: function(left.pop()))
            )


async def _done_within(task: asyncio.Task[Any], timeout_s: float) -> bool:
    """Waits for ``task``, at most ``timeout_s`` seconds and without cancelling it; returns whether it has ended."""
    done, _ = await asyncio.wait([task], timeout=timeout_s)
    return bool(done)
