"""Adaptive batching of the calls of one model: a free worker gets all waiting calls, and no call waits for others.

A lone call is sent at once, and under load batches are as large as the load. While all workers are busy, they get their
next batches ahead, so that they need not wait for work. A batch is sent ahead only when it is as large as those that
are running. Otherwise the first of many returning callers would be sent alone, and all others after it. Batches would
alternate between small and large, and half of them would be wasted.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field
from typing import Generic, TypeAlias, TypeVar

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.server.deadlines import Deadlines
from cutaway.server.memory import return_memory
from cutaway.v1 import worker_pb2

# A request queue that is fair to callers, and limits that callers share: slots and bytes.


T = TypeVar("T")

caller_id: ContextVar[str] = ContextVar("caller_id", default="")
"""The caller of the current task's call: the name of a token's entry, or the address of a connection."""


class FairQueue(Generic[T]):
    """A queue with one lane for each caller; lanes are served round-robin."""

    def __init__(self) -> None:
        self._first: deque[T] = deque()
        self._lanes: OrderedDict[str, deque[T]] = OrderedDict()
        self._length = 0

    def put(self, item: T) -> None:
        """Appends an item to the lane of the current task's caller."""
        self._lanes.setdefault(caller_id.get(), deque()).append(item)
        self._length += 1

    def put_back(self, items: Sequence[T]) -> None:
        """Inserts items, in order, before all others: they have waited already."""
        self._first.extendleft(reversed(items))
        self._length += len(items)

    def peek(self) -> T:
        """Returns the item that `pop` returns next."""
        return self._first[0] if self._first else next(iter(self._lanes.values()))[0]

    def pop(self) -> T:
        """Removes and returns the next item; the caller's lane goes to the end."""
        self._length -= 1
        if self._first:
            return self._first.popleft()
        caller, lane = self._lanes.popitem(last=False)
        item = lane.popleft()
        if lane:
            self._lanes[caller] = lane
        return item

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        yield from self._first
        for lane in self._lanes.values():
            yield from lane


class FairSlots:
    """Slots that callers share: waiting callers get them in turn, and no caller gets more than half of them.

    Args:
        count: the number of slots.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._most = max(1, count // 2)
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def slot(self, timeout_s: float) -> AsyncIterator[None]:
        """Holds a slot for the current task's caller.

        Raises:
            TimeoutError: there was none within ``timeout_s`` seconds.
        """
        caller = caller_id.get()
        turn = self._queue(caller)
        try:
            # wait_for would swallow a cancellation that comes with the turn, before Python 3.12.
            done, _ = await asyncio.wait([turn], timeout=timeout_s)
            if not done:
                raise asyncio.TimeoutError
            yield
        finally:
            if turn.done():
                self._release(caller)
            turn.cancel()

    def _queue(self, caller: str) -> asyncio.Future[None]:
        """Returns a future that is done when ``caller`` holds a slot."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        self._hand_out()
        return turn

    def _release(self, caller: str) -> None:
        self._free += 1
        self._held -= Counter((caller,))  # without callers that hold none
        self._hand_out()

    def _hand_out(self) -> None:
        while self._free and (caller := next(filter(self._may_have, self._waiting), None)) is not None:
            lane = self._waiting.pop(caller)
            turn = lane.popleft()
            if lane:
                self._waiting[caller] = lane
            if not turn.done():
                self._free -= 1
                self._held[caller] += 1
                turn.set_result(None)

    def _may_have(self, caller: str) -> bool:
        return self._held[caller] < self._most


_BURST_BYTES = 16 << 20
"""Bytes of requests after which free memory returns to the system, soon after no request is under way.

The C library glibc would keep most of it.
"""

_SOON_S = 2.0
"""Seconds until then: who has released the bytes still refers to them, and it costs milliseconds."""


class ByteBudget:
    """A limit of the bytes of all requests under way. One request alone is always within it.

    Args:
        most: the bytes of all callers; one caller may have half of them.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._total = 0
        self._held: dict[str, int] = {}
        self._passed = 0
        self._is_to_return = self._returns_soon = False

    def require_room(self) -> None:
        """Raises ``OVERLOADED`` if nothing is left: another request need not even be read."""
        if self._total >= self._most:
            raise _overloaded(self._total, self._most)

    def hold(self, size: int = 0) -> HeldBytes:
        """Holds the bytes of a request of the current task's caller; raises ``OVERLOADED`` if they are too many."""
        held = HeldBytes(self)
        if size:
            held.add(size)
        return held

    def take(self, caller: str, size: int, own: int) -> None:
        """Holds ``size`` more bytes of a request that has ``own`` bytes; raises ``OVERLOADED``."""
        callers = self._held.get(caller, 0)
        for held, most in ((self._total, self._most), (callers, self._most // 2)):
            if held > own and held + size > most:
                raise _overloaded(held, most)
        self._total += size
        self._held[caller] = callers + size

    def give_back(self, caller: str, size: int) -> None:
        """Ends the hold of ``size`` bytes."""
        self._total -= size
        self._held[caller] -= size
        if not self._held[caller]:
            del self._held[caller]
        self._passed += size
        self._is_to_return |= self._passed > _BURST_BYTES
        self._return_soon()

    def refused(self) -> None:
        """Counts a request that a door has refused, which may have taken far more than its bytes, as a burst."""
        self._is_to_return = True
        self._return_soon()

    def _return_soon(self) -> None:
        """Starts a timer that returns free memory to the system, if a burst of requests is over and no timer runs."""
        if self._is_to_return and not self._total and not self._returns_soon:
            self._passed, self._is_to_return, self._returns_soon = 0, False, True
            timer = threading.Timer(_SOON_S, self._return_memory)
            timer.daemon = True
            timer.start()

    def _return_memory(self) -> None:
        return_memory()
        self._returns_soon = False
        self._return_soon()  # for the requests since, of which the last may have ended this moment


class HeldBytes:
    """The bytes of one request within a budget, held until the end of its block; they grow while it arrives."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._caller = ""
        self._size = 0

    def add(self, size: int) -> None:
        """Holds ``size`` more bytes.

        Raises:
            CutawayError: ``OVERLOADED``, if they are too many for the caller, or for all.
        """
        if not self._size:
            self._caller = caller_id.get()
        self._budget.take(self._caller, size, self._size)
        self._size += size

    def __enter__(self) -> HeldBytes:
        return self

    def __exit__(self, *failure: object) -> None:
        self.release()

    def release(self) -> None:
        """Ends the hold."""
        if self._size:
            self._budget.give_back(self._caller, self._size)
        self._size = 0


def _overloaded(held: int, most: int) -> CutawayError:
    what = f"requests of {held} bytes are under way, {most} are allowed at a time"
    return error(Reason.OVERLOADED, f"{what}; try again")


_MAX_WORKER_DEATHS = 2
"""The number of dead workers after which a request counts as the cause."""


class Answers(Generic[T]):
    """Takes what becomes of the calls of a turn: each call's position and its reply, or that it was set aside; the end.

    Args:
        replies: where replies go.
        alone: whether nothing else may run meanwhile.
        let_go: called when no call keeps other turns from running any more.
        ended: called at the end of the turn; with the failure if the worker died.

    Attributes:
        alone: the argument.
    """

    def __init__(
        self,
        replies: Sequence[asyncio.Future[T]],
        *,
        alone: bool,
        let_go: Callable[[Answers[T]], None],
        ended: Callable[[Answers[T], Exception | None], None],
    ) -> None:
        self.alone = alone
        self._replies, self._let_go, self._ended = replies, let_go, ended
        self._occupying = set(range(len(replies)))

    def __call__(self, position: int, reply: T) -> None:
        """Completes the call at ``position``; a second reply, at the end of a streamed call, has no effect."""
        if not self._replies[position].done():
            self._replies[position].set_result(reply)
        if not all(each.done() for each in self._replies):
            self.set_aside(position)

    def set_aside(self, position: int) -> None:
        """Notes that a call no longer keeps other turns from running; after the last such call, calls ``let_go``."""
        self._occupying.discard(position)
        if not (self._occupying or self.alone):
            self._let_go(self)

    def end(self, failure: Exception | None = None) -> None:
        """Ends the turn: all calls are answered, or their worker died."""
        self._ended(self, failure)


Send: TypeAlias = Callable[[Sequence[worker_pb2.WorkerCall], Answers[T], int], None]
"""A function that sends a batch to a worker, which answers later; it also gets how many other calls wait."""


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


@dataclass(eq=False)
class Batcher(Generic[T]):
    """The queue in front of one model.

    Attributes:
        send: sends a batch.
        workers: returns how many batches may run at once.
        sends_ahead: whether each worker may get a batch while it runs another; it may in any case beside calls that
            were set aside, and then goes on without a pause.
        max_calls: the largest number of calls in a batch.
        max_bytes: the largest size of a batch, unless one call alone is larger.
        max_pending: the largest number of calls without a reply; further calls are refused.
        unavailable: returns why calls cannot wait for a worker while there is none; None if they can.
        batch_sizes: the number of batches by their size.
    """

    send: Send[T]
    _: KW_ONLY
    workers: Callable[[], int]
    sends_ahead: bool
    max_calls: int
    max_bytes: int
    max_pending: int
    unavailable: Callable[[], CutawayError | None] = lambda: None
    batch_sizes: Counter[int] = field(init=False, default_factory=Counter)
    _pending: Deadlines[_PendingCall[T]] = field(init=False, default_factory=lambda: Deadlines(_fail_late))
    _queue: FairQueue[_PendingCall[T]] = field(init=False, default_factory=FairQueue)
    _running: dict[Answers[T], Sequence[_PendingCall[T]]] = field(init=False, default_factory=dict)
    _aside: dict[Answers[T], Sequence[_PendingCall[T]]] = field(init=False, default_factory=dict)

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
        if len(self._pending) >= self.max_pending:
            raise error(Reason.OVERLOADED, f"{self.max_pending} calls are waiting for this model already; try again")
        call = _PendingCall[T](message, size, asyncio.get_running_loop().create_future())
        self._pending.add(call, timeout_s)
        self._queue.put(call)
        try:
            self.send_batches()
            return await call.reply  # a cancellation cancels it too; a queued call whose reply is done is dropped
        finally:
            self._pending.discard(call)

    def send_batches(self) -> None:
        """Sends what may be sent now, or fails what cannot wait; called again when workers have changed."""
        workers = self.workers() if self._queue else 0
        if self._queue and not workers and (failure := self.unavailable()):
            while self._queue:
                _fail(self._queue.pop(), failure)
        while self._queue and self._may_send(workers) and (calls := self._next_batch()):
            self.batch_sizes[len(calls)] += 1
            replies = [call.reply for call in calls]
            answers = Answers(replies, alone=calls[0].alone, let_go=self._let_go, ended=self._ended)
            self._running[answers] = calls
            try:
                self.send([call.message for call in calls], answers, len(self._queue))
            except Exception as failure:
                answers.end(error(Reason.INTERNAL, f"{type(failure).__name__}: {failure}"))

    def _let_go(self, answers: Answers[T]) -> None:
        """Stops counting a batch as running once its unanswered calls are all set aside, and sends further batches."""
        if answers in self._running:
            self._aside[answers] = self._running.pop(answers)
        self.send_batches()

    def _ended(self, answers: Answers[T], failure: Exception | None) -> None:
        """Returns calls to the queue after `NotBegun`; other errors fail or retry them. Sends further batches."""
        calls = self._running.pop(answers, None) or self._aside.pop(answers)
        left = [call for call in calls if not call.reply.done()]
        if isinstance(failure, CutawayError):
            self._batch_failed(left, failure)
        else:
            self._queue.put_back(left)
        self.send_batches()

    def _may_send(self, workers: int) -> bool:
        """Returns whether a worker is free, or as many calls wait as the running batches have on average."""
        batches = len(self._running)
        if self._queue.peek().alone:
            return batches + len(self._aside) < workers
        ahead = self.sends_ahead or bool(self._aside)
        if batches < workers or batches >= workers * (1 + ahead):
            return batches < workers
        return len(self._queue) * batches >= sum(map(len, self._running.values()))

    def _next_batch(self) -> list[_PendingCall[T]]:
        """Takes calls for one batch from the queue, within its limits; drops calls that were cancelled or failed."""
        batch: list[_PendingCall[T]] = []
        size = 0
        while self._queue and len(batch) < self.max_calls:
            call = self._queue.peek()
            size += call.size
            if batch and (call.alone or batch[0].alone or size > self.max_bytes):
                break
            self._queue.pop()
            if not call.reply.done():
                batch.append(call)
        return batch

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
            call.alone = True
        self._queue.put_back([call for call in calls if not call.reply.done()])


def _fail(call: _PendingCall[T], failure: CutawayError) -> None:
    if not call.reply.done():
        call.reply.set_exception(failure)


def _fail_late(call: _PendingCall[T]) -> None:
    _fail(call, error(Reason.DEADLINE_EXCEEDED, "the deadline passed before the model replied"))


async def within(timeout_s: float, awaited: Awaitable[T]) -> T:
    """Returns the result of ``awaited``, which is cancelled if it takes longer, or if the current task is cancelled.
    Before Python 3.12, `asyncio.wait_for` swallows a cancellation that comes with the result.

    Raises:
        TimeoutError: that of asyncio, after ``timeout_s`` seconds.
    """
    task = asyncio.ensure_future(awaited)
    try:
        done, _ = await asyncio.wait([task], timeout=timeout_s)
        if not done:
            raise asyncio.TimeoutError
        return task.result()
    finally:
        if not task.cancel() and not task.cancelled():
            task.exception()  # else asyncio logs it, if the current task was cancelled at the same moment
