"""A worker in a thread of this process: no Java; for notebooks, tests and first steps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

from cutaway.gateway.backends.worker_link import Turns, worker_died
from cutaway.gateway.batching.batcher import Replied
from cutaway.results import ModelName
from cutaway.v1 import worker_pb2
from cutaway.wire.chunks import as_message
from cutaway.worker.calls import Calls
from cutaway.worker.model_thread import ModelThread
from cutaway.worker.worker import Worker


class LocalWorker:
    """A worker and the thread that runs it; belongs to the event loop in which it is made.

    Attributes:
        turns: the turns that it has not answered.
    """

    def __init__(self, worker: Worker) -> None:
        self.turns = Turns()
        self._worker = worker
        self._thread = ModelThread(worker.name.model)
        self._calls = Calls(worker, self._thread, self._reply)
        self._loop = asyncio.get_running_loop()

    @property
    def name(self) -> ModelName:
        """Its model."""
        return self._worker.name

    @property
    def late_s(self) -> float:
        """For how many seconds its calls should be done; its thread cannot be ended."""
        until = self._worker.busy_until
        return max(0.0, time.time() - until) if until else 0.0

    async def run(self, calls: Sequence[worker_pb2.WorkerCall], replied: Replied[bytes], waiting: int = 0) -> None:
        """Runs a turn, and returns when it is answered."""
        self._calls.run(calls)
        await self.turns.add(calls, replied)

    def cancel(self, number: int) -> None:
        """Cancels a call, if this worker has it."""
        self._calls.cancel(number)

    async def pieces(self, number: int, until: float) -> AsyncGenerator[bytes, None]:
        """Yields the messages of a streamed reply."""
        pieces = self._worker.pieces.take(number)
        if pieces is None:  # nobody fetched them in time
            raise worker_died()
        while piece := await asyncio.to_thread(next, pieces, None):
            yield as_message(piece).joined()

    async def close(self, grace_s: float) -> None:
        """Ends the thread when its work is done; after ``grace_s`` seconds, abandons it."""
        await asyncio.to_thread(self._thread.close, grace_s)

    def _reply(self, number: int, reply: bytes) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.turns.arrived, number, reply)
