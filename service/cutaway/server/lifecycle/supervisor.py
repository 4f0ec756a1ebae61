"""Keeps the workers of a model store running and up to date.

After the model store changes, a new replica set starts beside the old one and replaces it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import structlog

from cutaway.contract.errors import CutawayError
from cutaway.server.backends.backend import Backend, SetServing, Supervise
from cutaway.server.file_watch import FileWatch
from cutaway.server.lifecycle.replica_set import ReplicaSet
from cutaway.server.model_store import ModelStore, archives_in, read_store
from cutaway.server.settings import Settings
from cutaway.server.time_limit import within

log = structlog.get_logger(__name__)

_POLL_S = 0.1
_SETTLE_S = 1.0
_RETRY_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)


class Supervisor:
    """The replica set over a model store, and the backend that calls it.

    Args:
        store: the models.
        settings: number of engines, limits and timeouts.
        workers: number of workers of each model in each engine; None for the archives' own.

    Attributes:
        backend: calls the current workers; the same object after a reload.
    """

    def __init__(self, store: ModelStore, settings: Settings, workers: int | None) -> None:
        self._directory = next(iter(store.archives.values())).parent
        self._settings = settings
        self._workers = workers
        self._current = self._replica_set(store)
        self._running = [self._current]
        self._watch = FileWatch(lambda: archives_in(self._directory), settle_s=_SETTLE_S, inodes=False)
        self.backend: Backend

    def _replica_set(self, store: ModelStore) -> ReplicaSet:
        return ReplicaSet(store, self._settings, self._workers)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[Backend, Supervise]]:
        """Starts TorchServe and waits for its models; stops it at the end of the block, or when the start is cancelled.

        Raises:
            CutawayError: TorchServe does not start, or no model answers.
        """
        log.info(f"starting {_described(self._settings)}; the log is in {self._settings.log_dir}")
        try:
            await self._current.start()
            self.backend = Backend(self._current.pool, self._current.store.catalog, self._settings)
            yield self.backend, self._supervise
        finally:
            await self._stop(list(self._running), self._settings.grace_s)

    async def _supervise(self, set_serving: SetServing) -> None:
        """Restarts processes and workers that end or hang, and reloads the model store when it changes.

        Returns only by an exception: that of the reload.

        Args:
            set_serving: called whenever the models that serve change.
        """
        self._current.supervise()
        reloading = asyncio.ensure_future(self._reload_on_change())
        serving = set(self._current.store.catalog.all())
        try:
            while not reloading.done():
                with suppress(asyncio.TimeoutError):  # no worker started or ended; one may hang
                    await within(_POLL_S, self._current.pool.news.wait())
                self._current.pool.news.clear()
                now = self._current.serving
                if now != serving:
                    serving = now
                    await set_serving(serving)
        finally:
            reloading.cancel()
            await asyncio.wait([reloading])
        if not reloading.cancelled():
            reloading.result()

    async def _reload_on_change(self) -> None:
        """Reloads the store after every change.

        An unforeseen failure (a full disk, no file descriptors) ends no running worker. The reload is tried again, at
        longer and longer intervals.
        """
        due, pauses = False, iter(_RETRY_PAUSES_S)
        while True:
            await asyncio.sleep(_POLL_S)
            try:
                due = self._watch.changed() or due
                if due:
                    await self._reload()
                due, pauses = False, iter(_RETRY_PAUSES_S)
            except Exception as failure:
                pause_s = next(pauses, _RETRY_PAUSES_S[-1])
                log.exception(
                    f"the model store could not be loaded ({type(failure).__name__}: {failure}); the previous models "
                    f"stay in service, and it is tried again in {pause_s:g} s"
                )
                await asyncio.sleep(pause_s)

    async def _reload(self) -> None:
        """Replaces the replica set by one over the current content of the store; if that fails, keeps the old one."""
        log.info("the model store has changed; loading it beside the models that are served")
        old = self._current
        try:
            store = await asyncio.to_thread(read_store, self._directory)
            for why in store.faults:
                log.warning(f"not served: {why}")
            new = self._replica_set(store)
            self._running.append(new)
            await new.start()
        except Exception as failure:
            await self._stop([replica_set for replica_set in self._running if replica_set is not old], 0.0)
            if not isinstance(failure, CutawayError):
                raise
            log.warning(f"the previous models stay in service: {failure.message.splitlines()[0]}")
            return
        self._current = new
        old.stop_supervising()
        new.supervise()
        # Running calls finish on the old processes; all others go to the new ones.
        self.backend.switch(new.pool, store.catalog)
        await self._stop([old], self._settings.grace_s)
        for name in store.archives:
            log.info(f"serving {name.model} {name.version}")

    async def _stop(self, replica_sets: Sequence[ReplicaSet], grace_s: float) -> None:
        for replica_set in replica_sets:
            await replica_set.stop(grace_s)
            self._running.remove(replica_set)


def _described(settings: Settings) -> str:
    if settings.engine != "torchserve":
        return "the workers"
    return "TorchServe" if settings.replicas == 1 else f"{settings.replicas} TorchServe processes"
