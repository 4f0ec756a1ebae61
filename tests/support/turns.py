"""Turns in tests: of batchers whose workers are coroutines, and of workers without a batcher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias, TypeVar

from cutaway.contract.tensors import Buffer
from cutaway.server.backends.backend import Answer, WorkerLink
from cutaway.server.batching import Answers, Send
from cutaway.v1.worker_pb2 import WorkerCall

T = TypeVar("T")

Replied: TypeAlias = Callable[[int, Buffer], object]
Answering: TypeAlias = Callable[[Sequence[WorkerCall], Answers[T]], Coroutine[Any, Any, None]]


def running(answer: Answering[T]) -> Send[T]:
    """What sends batches to ``answer``, which ends their turns by returning, or by the error that it raises."""
    tasks: set[asyncio.Task[None]] = set()

    def send(calls: Sequence[WorkerCall], answers: Answers[T], _: int) -> None:
        def end(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            if not task.cancelled():
                failure = task.exception()
                answers.end(failure if isinstance(failure, Exception) else None)

        task = asyncio.ensure_future(answer(calls, answers))
        tasks.add(task)
        task.add_done_callback(end)

    return send


class _Told(Answers[Answer]):
    """Tells the replies of a turn that no batcher sent; ``over`` is its end."""

    def __init__(self, replied: Replied) -> None:
        self.alone, self._replied = False, replied
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __call__(self, position: int, reply: Answer) -> None:
        self._replied(position, reply.reply)

    def set_aside(self, position: int) -> None:
        pass

    def end(self, failure: Exception | None = None) -> None:
        if self.over.done():  # nobody waits any more
            return
        if failure is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(failure)


async def run(worker: WorkerLink, calls: Sequence[WorkerCall], replied: Replied, waiting: int = 0) -> None:
    """Runs a turn; returns at its end, or raises why it was lost."""
    told = _Told(replied)
    worker.send(calls, told, waiting)
    await told.over
