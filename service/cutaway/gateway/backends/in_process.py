"""The backend that runs models in this process. No other module of the gateway needs torch."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import structlog

from cutaway.archive import reader
from cutaway.config.memory import share_of_worker
from cutaway.config.settings import Settings
from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.backends.base import MAX_BATCH_BYTES, Backend, SetServing, Supervise, with_context
from cutaway.gateway.batching.batcher import Batcher
from cutaway.gateway.models.catalog import Catalog
from cutaway.gateway.models.store import ModelStore
from cutaway.gateway.time_limit import within
from cutaway.results import ModelName
from cutaway.wire.chunks import as_message
from cutaway.worker.memory_limit import limit_request_memory
from cutaway.worker.worker import Worker
from cutaway.worker_protocol import cancellation, visible_layers
from cutaway.worker_protocol.socket_directory import ScratchDirectory
from cutaway.worker_protocol.torchserve_messages import CallParts
from cutaway.worker_protocol.visible_layers import LayerLists

log = structlog.get_logger(__name__)

T = TypeVar("T")

_POLL_S = 0.1


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
        yield InProcessBackend(workers, store.catalog, settings), partial(supervise, workers, settings.hang_s)


async def supervise(workers: Sequence[Worker], hang_s: float, set_serving: SetServing) -> None:
    """Calls ``set_serving`` whenever a model begins to hang, or goes on: its thread cannot be ended."""
    serving = {worker.name for worker in workers}
    while True:
        await asyncio.sleep(_POLL_S)
        now = {worker.name for worker in workers if not 0 < worker.busy_until < time.time() - hang_s / 2}
        if now != serving:
            serving = now
            await set_serving(serving)


class InProcessBackend:
    """Runs each model in a thread of this process: no Java; for notebooks, tests and first steps."""

    def __init__(self, workers: Sequence[Worker], catalog: Catalog, settings: Settings) -> None:
        self.catalog = catalog
        self._threads = {worker.name: _WorkerThread(worker) for worker in workers}
        self.batchers = {
            name: Batcher(
                thread.send,
                workers=1,
                ahead=0,
                max_calls=settings.max_batch_size,
                max_bytes=MAX_BATCH_BYTES,
                max_pending=settings.max_queue_length,
            )
            for name, thread in self._threads.items()
        }
        self._streams = {name: threading.BoundedSemaphore(settings.max_queue_length) for name in self._threads}
        self._cancellations = cancellation.Cancellations()

    async def call(self, name: ModelName, kind: str, payload: bytes, layers: LayerLists, timeout_s: float) -> bytes:
        """Queues a request, and returns the worker's reply."""
        with self._cancellations.path(timeout_s) as cancel_path:
            parts = with_context({kind: payload, **visible_layers.part(layers)}, timeout_s, cancel_path)
            return await self.batchers[name].call(parts, timeout_s)

    async def stream(
        self, name: ModelName, payload: bytes, layers: LayerLists, timeout_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Queues a request, and yields the messages of its reply; the model runs other requests meanwhile."""
        thread = self._threads[name]
        if not self._streams[name].acquire(blocking=False):
            raise error(Reason.OVERLOADED, "too many streamed replies of this model are not read yet; try again")
        with self._cancellations.path(timeout_s) as cancel_path:
            parts = with_context({"stream": payload, **visible_layers.part(layers)}, timeout_s, cancel_path)
            pieces = thread.worker.stream(parts, held=False)
            first = thread.submit(partial(next, pieces))  # all other pieces need no model
            try:
                piece = await within(timeout_s, asyncio.wrap_future(first))
                while piece:
                    yield as_message(piece).joined()
                    piece = await asyncio.to_thread(next, pieces, None)
            except asyncio.TimeoutError:
                raise error(Reason.DEADLINE_EXCEEDED, "the deadline passed before the model replied") from None
            finally:
                first.add_done_callback(lambda _: self._streams[name].release())  # at once, if it is done

    async def close(self, grace_s: float) -> None:
        """Ends the threads when their work is done; after ``grace_s`` seconds, abandons them."""
        await asyncio.gather(*(asyncio.to_thread(thread.close, grace_s) for thread in self._threads.values()))
        self._cancellations.close()


class _WorkerThread:
    """One worker and the thread that runs it."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        # A daemon: a model that never returns must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=f"cutaway-{worker.name.model}", daemon=True)
        self._thread.start()

    async def send(self, calls: Sequence[CallParts], timeout_s: float) -> Sequence[bytes]:
        """Returns the worker's replies to a batch."""
        return await asyncio.wrap_future(self.submit(partial(self.worker.answer, calls)))

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Runs ``job`` in the thread."""
        future: Future[T] = Future()
        self._jobs.put((job, future))
        return future

    def close(self, grace_s: float) -> None:
        self._jobs.put(None)
        self._thread.join(grace_s)

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, future = item
            if future.set_running_or_notify_cancel():
                future.set_result(job())
