"""The backend of models in this very process. It is the one part of the front door that needs torch."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from cutaway import archive, hangups
from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.backends import TURN_BYTES, a_row
from cutaway.gateway.catalog import Catalog
from cutaway.gateway.fleet import Announce
from cutaway.gateway.store import Store
from cutaway.gateway.turns import Row, Turns
from cutaway.results import ModelName
from cutaway.settings import Settings
from cutaway.wire.pieces import Piece, as_message
from cutaway.worker import Worker


@asynccontextmanager
async def loaded(store: Store, settings: Settings, announce: Announce) -> AsyncIterator[Embedded]:
    """The models of ``store``, loaded into this process one after the other. One that will not load costs the others
    nothing.

    Args:
        store: the models.
        settings: limits.
        announce: told of each that will not load.

    Raises:
        NotFound: ``MODEL_NOT_LOADED``, where not one does.
    """
    with _unpacked(store) as directories:
        workers = []
        for name, directory in directories.items():
            try:
                workers.append(await asyncio.to_thread(Worker.load, directory, device="cpu"))
            except CutawayError as failure:
                announce(store.give_up(name, str(failure)))
        store.refuse_none()
        yield Embedded(workers, store.catalog, waiting=settings.queue, calls=settings.batch)


@contextmanager
def _unpacked(store: Store) -> Iterator[dict[ModelName, Path]]:
    with tempfile.TemporaryDirectory(prefix="cutaway-") as scratch:
        directories = {name: Path(scratch) / path.stem for name, path in store.archives.items()}
        for name, directory in directories.items():
            archive.unpack(store.archives[name], directory)
        yield directories


class Embedded:
    """Workers in this very process, one thread each: no Java, for notebooks, tests and a first try.

    Args:
        workers: the models.
        catalog: what can be asked for.
        waiting: calls that may wait for one model.
        calls: how many calls a worker takes at once at most.
    """

    def __init__(self, workers: Sequence[Worker], catalog: Catalog, *, waiting: int, calls: int) -> None:
        self.catalog = catalog
        self._desks = {worker.name: _Desk(worker) for worker in workers}
        self.turns = {
            name: Turns(desk.ask, workers=1, ahead=0, calls=calls, size=TURN_BYTES, waiting=waiting)
            for name, desk in self._desks.items()
        }
        self._streams = {name: threading.BoundedSemaphore(waiting) for name in self._desks}
        self._hangups = hangups.HangUps()

    async def call(self, name: ModelName, kind: str, payload: bytes, timeout_s: float) -> bytes:
        """Wait for the model's turn, and ask."""
        with self._hangups.told(timeout_s) as word:
            return await self.turns[name].call(a_row({kind: payload}, timeout_s, word), timeout_s)

    async def stream(self, name: ModelName, payload: bytes, timeout_s: float) -> AsyncGenerator[bytes, None]:
        """Wait for the model's turn, ask, and take piece by piece while the model goes on with the next question."""
        if not self._streams[name].acquire(blocking=False):
            raise error(Reason.OVERLOADED, "too many replies are on their way from this model already; try again")
        with self._hangups.told(timeout_s) as word:
            row = a_row({"stream": payload}, timeout_s, word)
            answer = self._desks[name].begin(pieces := self._desks[name].worker.stream(row, held=False))
            try:
                piece = await asyncio.wait_for(asyncio.wrap_future(answer), timeout_s)
                while piece:
                    yield as_message(piece).joined()
                    piece = await asyncio.to_thread(next, pieces, None)
            except asyncio.TimeoutError:
                raise error(Reason.DEADLINE_EXCEEDED, "the deadline passed before the model answered") from None
            finally:
                answer.add_done_callback(lambda _: self._streams[name].release())  # at once, if it has ended

    async def close(self, grace_s: float) -> None:
        """End the threads once they have answered, or leave them behind after ``grace_s``."""
        await asyncio.gather(*(asyncio.to_thread(desk.close, grace_s) for desk in self._desks.values()))
        self._hangups.close()


class _Desk:
    """One worker and its one thread."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        # A daemon: a model that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name=f"cutaway-{worker.name.model}", daemon=True)
        self._thread.start()

    async def ask(self, rows: Sequence[Row], timeout_s: float) -> Sequence[bytes]:
        answers: Future[list[bytes]] = Future()
        self._jobs.put((partial(self.worker.answer, rows), answers))
        return await asyncio.wrap_future(answers)

    def begin(self, pieces: Iterator[Piece]) -> Future[Piece | None]:
        """The first of ``pieces``: the one that the model is needed for."""
        first: Future[Piece | None] = Future()
        self._jobs.put((partial(next, pieces), first))
        return first

    def close(self, grace_s: float) -> None:
        self._jobs.put(None)
        self._thread.join(grace_s)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, answer = job
            if answer.set_running_or_notify_cancel():
                answer.set_result(work())
