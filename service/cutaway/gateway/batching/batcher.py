"""Adaptive batching of the calls of one model: a free worker gets all waiting calls, and no call waits for others.

A lone call is sent at once, and under load batches are as large as the load; TorchServe's own batching delays every
call. While all workers are busy, the next batch is sent ahead, so that a worker has work when it is done, but only when
this batch is as large as those that are running. Otherwise the first of many returning callers would be sent alone, and
all others after it: batches would alternate between small and large, and half of them would be wasted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.batching.fair_queue import FairQueue
from cutaway.gateway.time_limit import within
from cutaway.worker_protocol.torchserve_messages import CallParts

_MAX_WORKER_DEATHS = 2
"""After so many dead workers, the request counts as the cause."""

Send: TypeAlias = Callable[[Sequence[CallParts], float], Awaitable[Sequence[bytes]]]
"""Sends a batch to a worker, with a timeout in seconds; returns one reply for each call, empty for a reply that did not
fit into one message."""


@dataclass(eq=False)
class _PendingCall:
    """A call without a reply yet.

    Attributes:
        parts: the call.
        deadline: in the event loop's time.
        reply: set when the reply arrives.
        alone: whether it must be the only call of its batch, because its last batch failed.
        worker_deaths: how many workers died while they had it.
    """

    parts: CallParts
    deadline: float
    reply: asyncio.Future[bytes]
    alone: bool = False
    worker_deaths: int = 0

    @property
    def size(self) -> int:
        return sum(map(len, self.parts.values()))


class Batcher:
    """The queue in front of one model.

    Args:
        send: sends a batch.
        workers: how many batches run at once.
        ahead: how many more batches may be sent while all workers are busy.
        max_calls: the largest number of calls in a batch.
        max_bytes: the largest size of a batch, unless one call alone is larger.
        max_pending: the largest number of calls without a reply; further calls are refused.

    Attributes:
        batch_sizes: how many batches there were of each size.
    """

    def __init__(
        self, send: Send, *, workers: int, ahead: int, max_calls: int, max_bytes: int, max_pending: int
    ) -> None:
        self._send = send
        self._workers = workers
        self._max_batches = workers + ahead
        self._max_calls = max_calls
        self._max_bytes = max_bytes
        self._max_pending = max_pending
        self._pending = 0
        self._queue: FairQueue[_PendingCall] = FairQueue()
        self._running: dict[asyncio.Task[None], Sequence[_PendingCall]] = {}
        self.batch_sizes: Counter[int] = Counter()

    @property
    def queue_length(self) -> int:
        """How many calls wait for a batch; safe to read from any thread."""
        while True:
            with suppress(RuntimeError):  # the queue changed during the iteration
                return sum(not call.reply.done() for call in self._queue)

    @property
    def latest_deadline(self) -> float:
        """The latest deadline of the calls that were sent and have no reply, in the event loop's time; 0 if there are
        none."""
        return max((call.deadline for calls in self._running.values() for call in calls), default=0.0)

    async def call(self, parts: CallParts, timeout_s: float) -> bytes:
        """Queues a call, and returns its reply.

        Raises:
            CutawayError: ``OVERLOADED``, ``DEADLINE_EXCEEDED``, or an error of the backend.
        """
        if self._pending >= self._max_pending:
            raise error(Reason.OVERLOADED, f"{self._max_pending} calls are waiting for this model already; try again")
        loop = asyncio.get_running_loop()
        call = _PendingCall(parts, loop.time() + timeout_s, loop.create_future())
        self._pending += 1
        call.reply.add_done_callback(self._leave)
        self._queue.put(call)
        self._send_batches()
        try:
            # A deadline or cancellation cancels the future, and a queued call is then dropped.
            return await within(timeout_s, call.reply)
        except asyncio.TimeoutError:
            raise error(Reason.DEADLINE_EXCEEDED, "the deadline passed before the model replied") from None

    def _leave(self, _: asyncio.Future[bytes]) -> None:
        self._pending -= 1

    def _send_batches(self) -> None:
        while self._may_send() and (calls := self._next_batch()):
            self.batch_sizes[len(calls)] += 1
            batch = asyncio.ensure_future(self._run(calls))
            self._running[batch] = calls
            batch.add_done_callback(self._batch_done)

    def _batch_done(self, batch: asyncio.Task[None]) -> None:
        del self._running[batch]
        self._send_batches()

    def _may_send(self) -> bool:
        """Returns whether a worker is free, or as many calls wait as the running batches have on average."""
        batches = len(self._running)
        if batches < self._workers or batches >= self._max_batches:
            return batches < self._workers
        return len(self._queue) * batches >= sum(map(len, self._running.values()))

    def _next_batch(self) -> list[_PendingCall]:
        batch: list[_PendingCall] = []
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

    async def _run(self, calls: Sequence[_PendingCall]) -> None:
        try:
            timeout_s = max(call.deadline for call in calls) - asyncio.get_running_loop().time()
            replies = await self._send([call.parts for call in calls], timeout_s)
        except CutawayError as failure:
            self._batch_failed(calls, failure)
        except Exception as failure:
            self._batch_failed(calls, error(Reason.INTERNAL, f"{type(failure).__name__}: {failure}"))
        else:
            for call, reply in zip(calls, replies):
                if reply and not call.reply.done():
                    call.reply.set_result(reply)
            self._retry_alone([call for call, reply in zip(calls, replies) if not reply])
        finally:
            for call in calls:  # those of a batch that was cancelled because the server stops
                if not (call.reply.done() or call in self._queue):
                    call.reply.cancel()

    def _batch_failed(self, calls: Sequence[_PendingCall], failure: CutawayError) -> None:
        """Fails the calls of a batch; after a worker died, retries each alone, so that a call that kills its worker
        fails by itself."""
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

    def _retry_alone(self, calls: Sequence[_PendingCall]) -> None:
        for call in calls:
            call.alone = True
        self._queue.put_back(calls)


def _fail(call: _PendingCall, failure: CutawayError) -> None:
    if not call.reply.done():
        call.reply.set_exception(failure)
