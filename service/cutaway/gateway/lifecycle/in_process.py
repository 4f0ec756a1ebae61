"""Models in threads of this process: no Java; for notebooks, tests and first steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import structlog

from cutaway.archive import reader
from cutaway.config.memory import share_of_worker
from cutaway.config.settings import Settings
from cutaway.errors import CutawayError
from cutaway.gateway.backends.backend import Backend, SetServing, Supervise
from cutaway.gateway.backends.local_worker import LocalWorker
from cutaway.gateway.models.store import ModelStore
from cutaway.results import ModelName
from cutaway.worker.memory_limit import limit_request_memory
from cutaway.worker.worker import Worker
from cutaway.worker_protocol.socket_directory import ScratchDirectory

log = structlog.get_logger(__name__)

_POLL_S = 0.1


class LocalWorkers:
    """The workers of this process; belong to the event loop in which they are made.

    Attributes:
        available: always; see `Workers`.
        sends_ahead: never: a worker is free the moment it replies, and larger batches cost less.
        changed: never called.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.available = True
        self.sends_ahead = False
        self.changed: Callable[[], None] = lambda: None
        self._workers = {worker.name: LocalWorker(worker) for worker in workers}

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


@asynccontextmanager
async def in_process_backend(store: ModelStore, settings: Settings) -> AsyncIterator[tuple[Backend, Supervise]]:
    """Loads the models of ``store`` into this process, one after the other; logs each that does not load.

    Raises:
        NotFound: ``MODEL_NOT_LOADED``, if no model loads.
    """
    with ScratchDirectory() as scratch:
        archives = {name: (path, Path(scratch) / path.stem) for name, path in store.archives.items()}
        for path, directory in archives.values():
            reader.unpack(path, directory)
        workers = []
        for name, (_, directory) in archives.items():
            try:
                workers.append(await asyncio.to_thread(Worker.load, directory, device="cpu"))
            except CutawayError as failure:
                log.warning(store.mark_broken(name, str(failure)))
        store.require_models()
        allowed = settings.request_memory_bytes or share_of_worker(1)
        limit_request_memory(allowed)
        for worker in workers:
            worker.request_memory_bytes = allowed
        local = LocalWorkers(workers)
        try:
            yield Backend(local, store.catalog, settings), partial(local.supervise, settings.hang_s)
        finally:
            await local.close(settings.grace_s)
