"""The calls of one gateway to a worker: its turns, which run in the model's thread, and its cancellations."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from statistics import StatisticsError, linear_regression
from typing import Any, TypeVar

from cutaway.server.worker.call import Call, as_failure
from cutaway.server.worker.proofs import IdleProofs
from cutaway.server.worker.worker import Worker
from cutaway.v1 import worker_pb2

# The thread that runs a model: hooks are state of the model, so only one turn runs at a time.


T = TypeVar("T")

log = logging.getLogger(__name__)


_QUIET_S = 1.0
"""The seconds without a job after which a worker is idle."""


class ModelThread:
    """A thread that runs jobs one after the other.

    It is a daemon: a model that never returns must not keep the process alive.

    Args:
        name: of the model.
        idle: tests that run while there is no job.
    """

    def __init__(self, name: str, idle: IdleProofs | None = None) -> None:
        self._idle = idle
        self._jobs: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"cutaway-{name}", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], Any]) -> None:
        """Runs ``job`` after those before it; an exception is only logged."""
        self._jobs.put(job)
        if self._idle is not None:
            self._idle.give_way()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Runs ``job`` after those before it, and returns its future result."""
        future: Future[T] = Future()
        self.put(partial(_complete, future, job))
        return future

    def close(self, grace_s: float) -> None:
        """Ends the thread when its jobs are done; after ``grace_s`` seconds, abandons it."""
        self._jobs.put(None)
        self._thread.join(grace_s)

    def _run(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Runs a job, and keeps nothing of it; returns whether there may be another."""
        job = self._next()
        if job is None:
            return False
        try:
            job()
        except Exception:
            log.exception("unexpected exception in the thread of a model")
        return True

    def _next(self) -> Callable[[], Any] | None:
        """Returns the next job; until it comes, tests run."""
        pause_s: float | None = _QUIET_S
        while self._idle is not None and pause_s is not None:
            with suppress(Empty):
                return self._jobs.get(timeout=pause_s)
            pause_s = self._idle.run(lambda: not self._jobs.empty())
        return self._jobs.get()


def _complete(future: Future[T], job: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(job())
    except BaseException as failure:
        future.set_exception(failure)


# A slow turn is split into parts: the calls of one part are answered before the next part runs. But the calls of a part
# share the fixed cost of a pass, so a turn is split only if its parts take little more time than the whole turn.


_REMEMBERED = 64
"""The number of last parts to whose times a fixed cost and a cost per call are fitted."""

_SHORTEST_S = 0.1
"""The shortest time of a part, in seconds: nobody notices less."""

_LOSS = 0.1
"""The share of throughput that parts may cost."""


class TurnCost:
    """A record of the times that the last parts of a worker took, by their number of calls."""

    def __init__(self) -> None:
        self._measured: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED)

    def parts(self, calls: Sequence[T]) -> Iterator[Sequence[T]]:
        """Splits a turn, the calls that waited together, into parts of nearly one size."""
        number = max(1, math.floor(len(calls) / self._least_part(len(calls))))
        size = math.ceil(len(calls) / number)
        for start in range(0, len(calls), size):
            yield calls[start : start + size]

    @contextmanager
    def measuring(self, calls: int) -> Iterator[None]:
        """Measures the time of the block, which runs a part of ``calls`` calls."""
        start = time.perf_counter()
        yield
        self.took(calls, time.perf_counter() - start)

    def took(self, calls: int, seconds: float) -> None:
        """Notes that a part of ``calls`` calls took ``seconds``."""
        self._measured.append((calls, seconds))

    def _least_part(self, calls: int) -> float:
        """Returns the fewest calls of a part of a turn of ``calls``; all of them while too little is known."""
        if not any(seconds > _SHORTEST_S for _, seconds in self._measured):
            return calls
        try:
            per_call_s, fixed_s = linear_regression(*zip(*self._measured))
        except StatisticsError:  # all had the same size
            return calls
        if per_call_s <= 0:
            return calls
        shared_s = max(0.0, fixed_s)
        lost_s = _LOSS * (shared_s / calls + per_call_s)
        enough = shared_s / (shared_s / calls + lost_s)
        return max(1.0, enough, (_SHORTEST_S - shared_s) / per_call_s)


class Calls:
    """The calls of one gateway to one worker.

    Args:
        worker: runs them.
        thread: the thread of its model.
        reply: sends a serialised `cutaway.v1.WorkerReply`, with the number of its call.
        unsound: called where the worker no longer passes its example after it ran out of memory.
        begun: sends that of a call whose streamed reply begins while its model runs; another one follows at its end.

    Attributes:
        waiting: the number of other calls that waited in the gateway when it sent its last turn.
    """

    def __init__(
        self,
        worker: Worker,
        thread: ModelThread,
        reply: Callable[[int, bytes], None],
        unsound: Callable[[], None] = lambda: None,
        begun: Callable[[int, bytes], None] = lambda number, reply: None,
    ) -> None:
        self._worker = worker
        self._unsound = unsound
        self._thread = thread
        self._reply = reply
        self._begun = begun
        self.waiting = 0
        self._cost = TurnCost()
        self._under_way: set[int] = set()
        self._cancelled: set[int] = set()

    def __len__(self) -> int:
        return len(self._under_way)

    def run(self, turn: Sequence[worker_pb2.WorkerCall]) -> None:
        """Queues the calls of a turn."""
        self._under_way.update(message.number for message in turn)
        self._thread.put(partial(self._run, turn))

    def cancel(self, number: int) -> None:
        """Cancels the call ``number``: no further pass begins for it."""
        if number in self._under_way:
            self._cancelled.add(number)

    def cancel_all(self) -> None:
        """Cancels all calls: the gateway is gone."""
        self._cancelled |= self._under_way

    def _run(self, turn: Sequence[worker_pb2.WorkerCall]) -> None:
        for part in self._cost.parts(turn):
            with self._cost.measuring(len(part)):
                self._run_part(part)

    def _run_part(self, part: Sequence[worker_pb2.WorkerCall]) -> None:
        numbers = [message.number for message in part]
        calls = [
            Call.of_message(message, partial(self._cancelled.__contains__, number), partial(self._begun, number))
            for number, message in zip(numbers, part)
        ]
        for number, reply in zip(numbers, self._replies(calls)):
            self._reply(number, reply)
        self._under_way.difference_update(numbers)
        self._cancelled.difference_update(numbers)
        if self._worker.ran_out and not self._worker.is_sound():
            self._unsound()

    def _replies(self, calls: Sequence[Call]) -> Iterator[bytes]:
        """Yields a reply for every call, also if the worker has a fault: callers must not wait for their deadlines."""
        answered = 0
        try:
            for reply in self._worker.answer(calls):
                yield reply
                answered += 1
        except Exception as failure:
            reply = worker_pb2.WorkerReply(failure=as_failure(failure)).SerializeToString()
            yield from itertools.repeat(reply, len(calls) - answered)
