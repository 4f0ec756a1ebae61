"""The interface of workers, in other processes or in this one, and the turns that a worker has under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.batching.batcher import NotBegun, Replied
from cutaway.results import ModelName
from cutaway.v1 import worker_pb2


class WorkerLink(Protocol):
    """One worker, which runs turns of calls one after the other."""

    turns: Turns

    @property
    def name(self) -> ModelName:
        """Its model."""

    @property
    def late_s(self) -> float:
        """For how many seconds it has shown no progress although all its calls should be done."""

    async def run(self, calls: Sequence[worker_pb2.WorkerCall], replied: Replied[bytes], waiting: int = 0) -> None:
        """Runs a turn; returns when all replies were passed to ``replied``.

        Args:
            calls: the turn.
            replied: gets the position of each call, and its reply.
            waiting: how many other calls of the model wait for a worker.

        Raises:
            CutawayError: ``WORKER_DIED``; the replies that have not arrived are lost.
            NotBegun: the same, but the worker died before it began this turn.
        """

    def cancel(self, number: int) -> None:
        """Cancels a call, if this worker has it."""

    def pieces(self, number: int, until: float) -> AsyncGenerator[bytes, None]:
        """Yields the messages of a streamed reply, serialised `cutaway.v1.InspectStreamResponse`.

        Args:
            number: `cutaway.v1.WorkerReply.pieces`.
            until: the deadline, in Unix seconds.

        Raises:
            CutawayError: ``WORKER_DIED``, or ``DEADLINE_EXCEEDED``.
        """


@dataclass(eq=False)
class _Turn:
    """Calls that were sent together: their positions by number, and the future of the whole turn."""

    waiting: dict[int, int]
    deadline: float
    replied: Replied[bytes]
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Turns:
    """The turns that one worker has and has not answered in full, in order.

    Attributes:
        last_added: when the last one was added, in the event loop's time.
    """

    def __init__(self) -> None:
        self.last_added = 0.0
        self._turns: list[_Turn] = []

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def latest_deadline(self) -> float:
        """The latest deadline of their calls, in Unix seconds; 0 without any."""
        return max((turn.deadline for turn in self._turns), default=0.0)

    async def add(self, calls: Sequence[worker_pb2.WorkerCall], replied: Replied[bytes]) -> None:
        """Adds a turn, and returns when all its replies have arrived; raises as `WorkerLink.run`."""
        numbers = {call.number: position for position, call in enumerate(calls)}
        turn = _Turn(numbers, max(call.deadline for call in calls), replied)
        self._turns.append(turn)
        self.last_added = asyncio.get_running_loop().time()
        await turn.done

    def arrived(self, number: int, reply: bytes) -> None:
        """Passes on the reply to a call."""
        turn = next(turn for turn in self._turns if number in turn.waiting)
        turn.replied(turn.waiting.pop(number), reply)
        if not turn.waiting:
            self._turns.remove(turn)
            _set(turn.done)

    def lost(self) -> None:
        """The worker has died: only the first turn can be the cause."""
        turns, self._turns = self._turns, []
        for number, turn in enumerate(turns):
            _set(turn.done, NotBegun() if number else worker_died())


def worker_died() -> CutawayError:
    """Returns the error of a call whose worker died."""
    return error(Reason.WORKER_DIED, "the worker process died during this call; a new one is starting")


def _set(done: asyncio.Future[None], failure: Exception | None = None) -> None:
    if done.done():  # the turn was cancelled, because the server stops
        return
    if failure is None:
        done.set_result(None)
    else:
        done.set_exception(failure)
