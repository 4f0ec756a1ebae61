"""The calls of one gateway to a worker: its turns, which are jobs of the model's threads, and its cancellations."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import StatisticsError, linear_regression
from typing import TypeVar

from cutaway.contract.wire.worker_reply import Parts, Reply
from cutaway.server.worker.call import Call, as_failure
from cutaway.server.worker.loading import is_lost
from cutaway.server.worker.model_threads import Job
from cutaway.server.worker.worker import Worker
from cutaway.v1 import worker_pb2

T = TypeVar("T")

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
    def measuring(self, calls: int, clock: Callable[[], float]) -> Iterator[None]:
        """Measures the time of the block by ``clock``; it runs a part of ``calls`` calls."""
        start = clock()
        yield
        self.took(calls, clock() - start)

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
        reply: sends a serialised `cutaway.v1.WorkerReply`, whose parts do not change, with the number of its call.
        set_aside: gets the number of a call that no longer keeps other turns from running.
        unsound: called where the worker no longer passes its example after it ran out of memory, or has lost its GPU.
        begun: sends that of a call whose streamed reply begins while its model runs; another one follows at its end.

    Attributes:
        waiting: the number of other calls that waited in the gateway when it sent its last turn.
    """

    def __init__(
        self,
        worker: Worker,
        reply: Callable[[int, Parts], None],
        set_aside: Callable[[int], None] = lambda _: None,
        unsound: Callable[[], None] = lambda: None,
        begun: Callable[[int, bytes], None] = lambda number, reply: None,
    ) -> None:
        self._worker = worker
        self._unsound = unsound
        self._reply = reply
        self._begun = begun
        self._set_aside = set_aside
        self.waiting = 0
        self._cost = TurnCost()
        self._under_way: set[int] = set()
        self._cancelled: set[int] = set()

    def __len__(self) -> int:
        return len(self._under_way)

    def run(self, turn: Sequence[worker_pb2.WorkerCall], *, alone: bool = False) -> None:
        """Queues the calls of a turn; ``alone``: no other turn begins before it has ended."""
        self._under_way.update(message.number for message in turn)
        self._put(partial(self._run, turn, alone), turn, is_divisible=not alone)

    def cancel(self, number: int) -> None:
        """Cancels the call ``number``: no further pass begins for it."""
        if number in self._under_way:
            self._cancelled.add(number)

    def cancel_all(self) -> None:
        """Cancels all calls: the gateway is gone."""
        self._cancelled |= self._under_way

    def _put(self, run: Callable[[], None], messages: Sequence[worker_pb2.WorkerCall], **kind: bool) -> None:
        """Puts ``run`` as a job into the model's threads, for the callers and the latest deadline of ``messages``."""
        cancellations = [self._call(message).cancellation for message in messages]
        job = Job(
            run,
            list(dict.fromkeys(message.caller for message in messages)),
            deadline=max(cancellation.deadline or math.inf for cancellation in cancellations),
            is_cancelled=lambda: all(cancellation.is_cancelled for cancellation in cancellations),
            set_aside=lambda: self._all_set_aside(messages),
            **kind,
        )
        self._worker.threads.put(job)

    def _call(self, message: worker_pb2.WorkerCall) -> Call:
        number = message.number
        return Call.of_message(message, partial(self._cancelled.__contains__, number), partial(self._begun, number))

    def _all_set_aside(self, messages: Sequence[worker_pb2.WorkerCall]) -> None:
        """Reports those of the calls that have no reply yet as set aside: they keep no other turn from running."""
        for message in messages:
            if message.number in self._under_way:
                self._set_aside(message.number)

    def _run(self, turn: Sequence[worker_pb2.WorkerCall], alone: bool) -> None:
        for part in self._cost.parts(turn):
            with self._cost.measuring(len(part), lambda: self._worker.threads.used_s):
                self._run_part(part, alone)

    def _run_part(self, part: Sequence[worker_pb2.WorkerCall], alone: bool) -> None:
        """Runs a part of a turn: short calls together, long calls as jobs of their own unless ``alone``."""
        numbers = [message.number for message in part]
        waiting = set(numbers)

        def reply(position: int, data: Parts) -> None:
            waiting.discard(numbers[position])
            self._replied(numbers[position], data, alone)

        def later(run: Callable[[], None], positions: Sequence[int]) -> None:
            if alone:
                run()
                return
            messages = [part[position] for position in positions]
            own = {message.number for message in messages}
            waiting.difference_update(own)
            self._all_set_aside(messages)
            self._put(partial(self._answer, run, own), messages, is_long=True)

        self._answer(lambda: self._worker.run([self._call(message) for message in part], reply, later), waiting, alone)

    def _answer(self, run: Callable[[], None], waiting: set[int], alone: bool = False) -> None:
        """Runs calls; replies also if the worker has a fault: callers must not wait for their deadlines.

        ``waiting``: the numbers of the calls that have no reply.
        """
        try:
            run()
        except Exception as failure:
            reply = Reply.failed(as_failure(failure)).serialized()
            for number in waiting & self._under_way:
                self._replied(number, reply, alone)
        if not self._worker.is_sound():
            self._unsound()

    def _replied(self, number: int, reply: Parts, alone: bool) -> None:
        if not alone and is_lost(self._worker.device):
            self._unsound()  # the gateway sends each call to another worker, alone: only the one at fault fails there
        self._reply(number, reply)
        self._under_way.discard(number)
        self._cancelled.discard(number)
