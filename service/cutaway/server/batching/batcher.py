"""Adaptive batching of the calls of one model: a free worker gets all waiting calls, and no call waits for others.

A lone call is sent at once, and under load batches are as large as the load. While all workers are busy, they get their
next batches ahead, so that they need not wait for work. A batch is sent ahead only when it is as large as those that
are running. Otherwise the first of many returning callers would be sent alone, and all others after it. Batches would
alternate between small and large, and half of them would be wasted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.server.batching.fair_queue import FairQueue
from cutaway.v1 import worker_pb2

T = TypeVar("T")

_MAX_WORKER_DEATHS = 2
"""The number of dead workers after which a request counts as the cause."""

Replied: TypeAlias = Callable[[int, T], None]
"""A function that takes the position of a call in its batch, and its reply."""

Send: TypeAlias = Callable[[Sequence[worker_pb2.WorkerCall], Replied[T]], Awaitable[None]]
"""A function that sends a batch to a worker, and returns when all its calls are answered."""


class NotBegun(Exception):
    """A worker died before it began a batch, which is then sent again as it was."""


@dataclass(eq=False)
class _PendingCall(Generic[T]):
    """A call without a reply yet.

    Attributes:
        message: the call.
        size: of its request, in bytes.
        reply: set when the reply arrives.
        alone: whether it must be the only call of its batch, because its last batch failed.
        worker_deaths: how many workers died while they had it.
    """

    message: worker_pb2.WorkerCall
    size: int
    reply: asyncio.Future[T]
    alone: bool = False
    worker_deaths: int = 0


class Batcher(Generic[T]):
    """The queue in front of one model.

    Args:
        send: sends a batch.
        workers: returns how many batches may run at once.
        unavailable: returns why calls cannot wait for a worker; None if they can, or need not.
        sends_ahead: whether each worker may get a batch while it runs another.
        max_calls: the largest number of calls in a batch.
        max_bytes: the largest size of a batch, unless one call alone is larger.
        max_pending: the largest number of calls without a reply; further calls are refused.

    Attributes:
        batch_sizes: the number of batches by their size.
    """

    def __init__(
        self,
        send: Send[T],
        *,
        workers: Callable[[], int],
        unavailable: Callable[[], CutawayError | None] = lambda: None,
        sends_ahead: bool,
        max_calls: int,
        max_bytes: int,
        max_pending: int,
    ) -> None:
        self._send = send
        self._workers = workers
        self._unavailable = unavailable
        self._sends_ahead = sends_ahead
        self._max_calls = max_calls
        self._max_bytes = max_bytes
        self._max_pending = max_pending
        self._pending = 0
        self._queue: FairQueue[_PendingCall[T]] = FairQueue()
        self._running: dict[asyncio.Task[None], int] = {}
        self.batch_sizes: Counter[int] = Counter()

    @property
    def queue_length(self) -> int:
        """The number of calls that wait for a batch; safe to read from any thread."""
        while True:
            with suppress(RuntimeError):  # the queue changed during the iteration
                return sum(not call.reply.done() for call in self._queue)

    async def call(self, message: worker_pb2.WorkerCall, size: int, timeout_s: float) -> T:
        """Queues a call with a request of ``size`` bytes, and returns its reply.

        Raises:
            CutawayError: ``OVERLOADED``, ``DEADLINE_EXCEEDED``, or an error of the backend.
        """
        if self._pending >= self._max_pending:
            raise error(Reason.OVERLOADED, f"{self._max_pending} calls are waiting for this model already; try again")
        call = _PendingCall[T](message, size, asyncio.get_running_loop().create_future())
        self._pending += 1
        call.reply.add_done_callback(self._leave)
        self._queue.put(call)
        self.send_batches()
        timer = asyncio.get_running_loop().call_later(timeout_s, _expire, call)
        try:
            return await call.reply  # a cancellation cancels it too; a queued call whose reply is done is dropped
        finally:
            timer.cancel()

    def _leave(self, _: asyncio.Future[T]) -> None:
        self._pending -= 1

    def send_batches(self) -> None:
        """Sends what may be sent now, or fails what cannot wait; called again when workers have changed."""
        if self._queue and (failure := self._unavailable()):
            self._fail_waiting(failure)
        while self._may_send() and (calls := self._next_batch()):
            self.batch_sizes[len(calls)] += 1
            batch = asyncio.ensure_future(self._run(calls))
            self._running[batch] = len(calls)
            batch.add_done_callback(self._batch_done)

    def _fail_waiting(self, failure: CutawayError) -> None:
        while self._queue:
            _fail(self._queue.pop(), failure)

    def _batch_done(self, batch: asyncio.Task[None]) -> None:
        del self._running[batch]
        self.send_batches()

    def _may_send(self) -> bool:
        """Returns whether a worker is free, or as many calls wait as the running batches have on average."""
        batches, workers = len(self._running), self._workers()
        if batches < workers or batches >= workers * (1 + self._sends_ahead):
            return batches < workers
        return len(self._queue) * batches >= sum(self._running.values())

    def _next_batch(self) -> list[_PendingCall[T]]:
        batch: list[_PendingCall[T]] = []
        size = 0
        while self._queue and len(batch) < self._max_calls:
            call = self._queue.peek()
            size += call.size
            if batch and (call.alone or batch[0].alone or size > self._max_bytes):
                break
            self._queue.pop()
            if not call.reply.done():
                batch.append(call)
        return batch

    async def _run(self, calls: Sequence[_PendingCall[T]]) -> None:
        def replied(position: int, reply: T) -> None:
            if not calls[position].reply.done():
                calls[position].reply.set_result(reply)

        try:
            await self._send([call.message for call in calls], replied)
        except NotBegun:
            self._queue.put_back([call for call in calls if not call.reply.done()])
        except CutawayError as failure:
            self._batch_failed([call for call in calls if not call.reply.done()], failure)
        except Exception as failure:
            self._batch_failed(calls, error(Reason.INTERNAL, f"{type(failure).__name__}: {failure}"))
        finally:
            for call in calls:  # those of a batch that was cancelled because the server stops
                if not (call.reply.done() or call in self._queue):
                    call.reply.cancel()

    def _batch_failed(self, calls: Sequence[_PendingCall[T]], failure: CutawayError) -> None:
        """Fails the calls of a batch; after a worker died, retries every call alone.

        So a call that kills its worker fails by itself.
        """
        if failure.reason != Reason.WORKER_DIED:
            for call in calls:
                _fail(call, failure)
            return
        for call in calls:
            call.worker_deaths += 1
            if call.worker_deaths >= _MAX_WORKER_DEATHS:
                message = f"{call.worker_deaths} workers died while they ran this request"
                _fail(call, error(Reason.WORKER_KILLED, message))
        self._retry_alone([call for call in calls if not call.reply.done()])

    def _retry_alone(self, calls: Sequence[_PendingCall[T]]) -> None:
        for call in calls:
            call.alone = True
        self._queue.put_back(calls)


def _expire(call: _PendingCall[T]) -> None:
    _fail(call, error(Reason.DEADLINE_EXCEEDED, "the deadline passed before the model replied"))


def _fail(call: _PendingCall[T], failure: CutawayError) -> None:
    if not call.reply.done():
        call.reply.set_exception(failure)
