"""Calls that wait for one model: a free worker takes all that wait, and nobody waits for more to come.

A lone caller never waits, and under load batches are as large as the load: TorchServe's own batching makes every call
wait for others for a while. Behind a busy worker the next turn is made ready, so that it has work when it is done; but
not before that turn is as large as those under way. Otherwise the first of many callers to come back would go alone,
and all others after it: turns would be small and large by turns, and half of them a waste.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.fair import FairQueue

Row: TypeAlias = Mapping[str, bytes]
"""One call's parts by name, as `cutaway.worker.Worker` takes them."""

_MOST_DEATHS = 2
"""Of workers, before a request is taken for the reason."""

Send: TypeAlias = Callable[[Sequence[Row], float], Awaitable[Sequence[bytes]]]
"""Asks a model all rows at once, within so many seconds; returns a reply each, empty where all of them are too much
for one message."""


@dataclass(eq=False)
class _Waiting:
    """A call.

    Attributes:
        row: its parts.
        until: when its caller stops waiting, in the event loop's time.
        answer: what it waits for.
        alone: whether it must not share a turn, because one that it shared went wrong.
        deaths: of how many workers that had it.
    """

    row: Row
    until: float
    answer: asyncio.Future[bytes]
    alone: bool = False
    deaths: int = 0

    @property
    def size(self) -> int:
        return sum(map(len, self.row.values()))


class Turns:
    """The queue in front of one model.

    Args:
        send: asks the model.
        workers: how many turns the model works on.
        ahead: how many more may be under way, behind those.
        calls: how many calls a turn takes at most.
        size: how many bytes they have together at most, where there is more than one.
        waiting: how many calls may wait for their answers.

    Attributes:
        sizes: how many turns there have been of so many calls.
    """

    def __init__(self, send: Send, *, workers: int, ahead: int, calls: int, size: int, waiting: int) -> None:
        self._send = send
        self._workers = workers
        self._at_once = workers + ahead
        self._calls = calls
        self._size = size
        self._most = self._places = waiting
        self._queue: FairQueue[_Waiting] = FairQueue()
        self._under_way: dict[asyncio.Task[None], int] = {}
        self.sizes: Counter[int] = Counter()

    @property
    def waiting(self) -> int:
        """How many calls wait for a turn; may be asked from any thread."""
        while True:
            with suppress(RuntimeError):  # the queue changed while it was counted: count again
                return sum(not each.answer.done() for each in self._queue)

    async def call(self, row: Row, timeout_s: float) -> bytes:
        """Ask, and wait for the answer.

        Raises:
            CutawayError: ``OVERLOADED``, ``DEADLINE_EXCEEDED``, or what the model's side says.
        """
        if not self._places:
            raise error(Reason.OVERLOADED, f"{self._most} calls are waiting for this model already; try again")
        loop = asyncio.get_running_loop()
        waiting = _Waiting(row, loop.time() + timeout_s, loop.create_future())
        self._places -= 1
        waiting.answer.add_done_callback(self._leave)
        self._queue.put(waiting)
        self._go_on()
        try:
            # Whoever stops waiting, by deadline or by hanging up, takes a call that has not begun out of the queue.
            return await asyncio.wait_for(waiting.answer, timeout_s)
        except asyncio.TimeoutError:
            raise error(Reason.DEADLINE_EXCEEDED, "the deadline passed before the model answered") from None

    def _leave(self, _: asyncio.Future[bytes]) -> None:
        self._places += 1

    def _go_on(self) -> None:
        while self._due() and (calls := self._taken()):
            self.sizes[len(calls)] += 1
            turn = asyncio.ensure_future(self._turn(calls))
            self._under_way[turn] = len(calls)
            turn.add_done_callback(self._over)

    def _over(self, turn: asyncio.Task[None]) -> None:
        del self._under_way[turn]
        self._go_on()

    def _due(self) -> bool:
        """Whether the next turn may begin: a worker is free, or there are as many calls as in turns under way."""
        turns = len(self._under_way)
        if turns < self._workers or turns >= self._at_once:
            return turns < self._workers
        return len(self._queue) * turns >= sum(self._under_way.values())

    def _taken(self) -> list[_Waiting]:
        """The next turn's calls."""
        taken: list[_Waiting] = []
        size = 0
        while self._queue and len(taken) < self._calls:
            following = self._queue.next()
            size += following.size
            if taken and (following.alone or taken[0].alone or size > self._size):
                break
            self._queue.pop()
            if not following.answer.done():
                taken.append(following)
        return taken

    async def _turn(self, calls: Sequence[_Waiting]) -> None:
        try:
            replies = await self._send([each.row for each in calls], self._longest(calls))
        except CutawayError as failure:
            self._failed(calls, failure)
        except Exception as failure:
            self._failed(calls, error(Reason.INTERNAL, f"{type(failure).__name__}: {failure}"))
        else:
            for each, reply in zip(calls, replies):
                if reply:
                    _settle(each, reply)
            self._again([each for each, reply in zip(calls, replies) if not reply])
        finally:
            for each in calls:  # of a turn that was cancelled, because all of this ends
                if not (each.answer.done() or each in self._queue):
                    each.answer.cancel()

    def _longest(self, calls: Sequence[_Waiting]) -> float:
        now = asyncio.get_running_loop().time()
        return max(each.until - now for each in calls)

    def _failed(self, calls: Sequence[_Waiting], failure: CutawayError) -> None:
        """Where a worker died, each of its calls is asked once more, alone: one of them may be why, and then fails by
        itself; or none, and all are answered."""
        if failure.reason != Reason.WORKER_DIED:
            for each in calls:
                _fail(each, failure)
            return
        for each in calls:
            each.deaths += 1
            if each.deaths >= _MOST_DEATHS:
                _fail(each, error(Reason.WORKER_KILLED, f"{each.deaths} workers died while they ran this request"))
        self._again([each for each in calls if not each.answer.done()])

    def _again(self, calls: Sequence[_Waiting]) -> None:
        for each in calls:
            each.alone = True
        self._queue.put_back(calls)


def _fail(waiting: _Waiting, failure: CutawayError) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(failure)


def _settle(waiting: _Waiting, reply: bytes) -> None:
    if not waiting.answer.done():
        waiting.answer.set_result(reply)
