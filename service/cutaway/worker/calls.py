"""The calls of one gateway: runs its turns in the model's thread, and knows which calls it has cancelled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from cutaway.v1 import worker_pb2
from cutaway.worker.call import Call
from cutaway.worker.failures import as_failure
from cutaway.worker.model_thread import ModelThread
from cutaway.worker.turn_cost import TurnCost
from cutaway.worker.worker import Worker


class Calls:
    """The calls of one gateway to one worker.

    Args:
        worker: runs them.
        thread: the thread of its model.
        reply: sends a serialised `cutaway.v1.WorkerReply`, with the number of its call.

    Attributes:
        waiting: how many other calls waited in the gateway when it sent its last turn.
    """

    def __init__(self, worker: Worker, thread: ModelThread, reply: Callable[[int, bytes], None]) -> None:
        self._worker = worker
        self._thread = thread
        self._reply = reply
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
        """No further pass begins for the call ``number``."""
        if number in self._under_way:
            self._cancelled.add(number)

    def cancel_all(self) -> None:
        """The gateway is gone."""
        self._cancelled |= self._under_way

    def _run(self, turn: Sequence[worker_pb2.WorkerCall]) -> None:
        for part in self._cost.parts(turn):
            with self._cost.measuring(len(part)):
                self._run_part(part)

    def _run_part(self, part: Sequence[worker_pb2.WorkerCall]) -> None:
        numbers = [message.number for message in part]
        calls = [Call.of_message(each, partial(self._cancelled.__contains__, each.number)) for each in part]
        for number, reply in zip(numbers, self._replies(calls)):
            self._reply(number, reply)
        self._under_way.difference_update(numbers)
        self._cancelled.difference_update(numbers)

    def _replies(self, calls: Sequence[Call]) -> Iterator[bytes]:
        """Yields a reply for each call, also if the worker has a fault: callers must not wait for their deadlines."""
        answered = 0
        try:
            for reply in self._worker.answer(calls):
                yield reply
                answered += 1
        except Exception as failure:
            reply = worker_pb2.WorkerReply(failure=as_failure(failure)).SerializeToString()
            yield from itertools.repeat(reply, len(calls) - answered)
