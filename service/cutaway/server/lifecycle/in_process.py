"""Models in threads of this process: no Java; for notebooks, tests and first steps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

import structlog

from cutaway.adapter_modules import plain_names
from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.results import ModelName
from cutaway.contract.wire.chunks import as_message
from cutaway.server.archive import reader
from cutaway.server.backends.backend import Answer, Backend, SetServing, Supervise, Turns, worker_died
from cutaway.server.batching import Answers, within
from cutaway.server.memory import RequestMemory, share_of_worker
from cutaway.server.model_store import ModelStore
from cutaway.server.settings import Settings
from cutaway.server.worker.calls import Calls
from cutaway.server.worker.loading import device_of, gpu_in_turn, request_memory
from cutaway.server.worker.model_threads import ModelThreads
from cutaway.server.worker.worker import Worker
from cutaway.server.worker_protocol import ScratchDirectory
from cutaway.v1 import worker_pb2


class LocalWorker:
    """A worker and the thread that runs it; belongs to the event loop in which it is made.

    Attributes:
        turns: the turns that it has not answered.
        name: its model.
    """

    def __init__(self, worker: Worker) -> None:
        self.turns = Turns(self)
        self.name = worker.name
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        arrived, aside, begun = (
            partial(self._soon, told) for told in (self.turns.arrived, self.turns.set_aside, self.turns.begun)
        )
        self._calls = Calls(worker, lambda number, reply: arrived(number, b"".join(reply)), aside, begun=begun)
        worker.begin_idle_tests()

    @property
    def late_s(self) -> float:
        """The seconds since all its calls should have been done; its thread cannot be ended."""
        return self._worker.late_s

    def send(self, calls: Sequence[worker_pb2.WorkerCall], answers: Answers[Answer], waiting: int) -> None:
        """Runs a turn; see `WorkerLink.send`."""
        self._calls.run(calls, alone=answers.alone)
        self.turns.add(calls, answers)

    def cancel(self, number: int) -> None:
        """Cancels a call, if this worker has it."""
        self._calls.cancel(number)

    async def pieces(self, number: int, until: float) -> AsyncGenerator[bytes, None]:
        """Yields the messages of a streamed reply; raises ``DEADLINE_EXCEEDED`` while a pass takes too long."""
        pieces = self._worker.pieces.take(number)
        if pieces is None:  # nobody fetched them in time
            raise worker_died()
        arrived = asyncio.Event()
        pieces.notify(partial(self._soon, arrived.set))
        while True:
            arrived.clear()
            try:
                part = pieces.take()
            except Empty:
                try:
                    await within(max(0.0, until - time.time()), arrived.wait())
                except asyncio.TimeoutError:
                    what = "the deadline passed before the whole reply was sent"
                    raise error(Reason.DEADLINE_EXCEEDED, what) from None
                continue
            if part is None:
                return
            while piece := await asyncio.to_thread(next, part, None):
                yield as_message(piece).joined()

    async def close(self, grace_s: float) -> None:
        """Ends the thread when its work is done; after ``grace_s`` seconds, abandons it."""
        await asyncio.to_thread(self._worker.threads.close, grace_s)

    def _soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Calls ``function`` in the event loop's thread; the model's threads report replies in this way."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function, *arguments)


log = structlog.get_logger(__name__)

_POLL_S = 0.1


class LocalWorkers:
    """The workers of this process; belong to the event loop in which they are made.

    Attributes:
        sends_ahead: False: a worker is free the moment it replies, and larger batches cost less.
        changed: not called.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.sends_ahead = False
        self.changed: Callable[[], None] = lambda: None
        self._workers = {worker.name: LocalWorker(worker) for worker in workers}

    def may_come(self, name: ModelName) -> bool:
        """Returns True; see `Workers`."""
        return True

    def of(self, name: ModelName) -> Sequence[LocalWorker]:
        """Returns the worker of a model."""
        return [self._workers[name]]

    async def supervise(self, hang_s: float, set_serving: SetServing) -> None:
        """Calls ``set_serving`` whenever a model begins to hang, or goes on."""
        serving = set(self._workers)
        while True:
            await asyncio.sleep(_POLL_S)
            now = {name for name, worker in self._workers.items() if worker.late_s < hang_s / 2}
            if now != serving:
                serving = now
                await set_serving(serving)

    async def close(self, grace_s: float) -> None:
        """Ends the threads when their work is done; after ``grace_s`` seconds, abandons them."""
        await asyncio.gather(*(worker.close(grace_s) for worker in self._workers.values()))


def _load(directory: Path, number: int, proofs: Path | None) -> Worker:
    with plain_names(directory):
        return Worker.load(directory, device=device_of(gpu_in_turn(number)), proofs_dir=proofs)


def _limit(workers: Sequence[Worker], own: int) -> None:
    """Lets the requests of all ``workers`` on a CPU take ``own`` bytes together, and those on a GPU a part of it."""
    memory = RequestMemory(own)
    for worker in workers:
        worker.memory = memory if worker.device.type == "cpu" else request_memory(worker.device, None)
        log.info(f"{worker.name.model} {worker.name.version}: {worker.fits()}")
    memory.enforce()


@asynccontextmanager
async def in_process_backend(store: ModelStore, settings: Settings) -> AsyncIterator[tuple[Backend, Supervise]]:
    """Loads the models of ``store`` into this process, one after the other; logs those that do not load in time.

    Raises:
        NotFound: ``MODEL_NOT_LOADED``, if no model loads.
    """
    with ScratchDirectory() as scratch:
        archives = {name: (path, Path(scratch) / path.stem) for name, path in store.archives.items()}
        workers = []
        for number, (name, (path, directory)) in enumerate(archives.items()):
            proofs = settings.proofs_beside(path.parent)
            try:
                reader.unpack(path, directory)
                thread = ModelThreads(name.model)
                loading = thread.submit(partial(_load, directory, number, proofs))
                thread.close(0.0)  # when it has loaded; nothing ends it before
                workers.append(await within(settings.start_timeout_s, asyncio.wrap_future(loading)))
            except asyncio.TimeoutError:
                log.warning(store.mark_broken(name, f"it did not load within {settings.start_timeout_s:g} s"))
            except CutawayError as failure:
                log.warning(store.mark_broken(name, str(failure)))
        store.require_models()
        if len(workers) == 1:
            workers[0].set_alone()
        _limit(workers, settings.request_memory_bytes or share_of_worker(1, settings.memory_bytes))
        local = LocalWorkers(workers)
        try:
            yield Backend(local, store.catalog, settings), partial(local.supervise, settings.hang_s)
        finally:
            await local.close(settings.grace_s)
