"""Keeps what a model store holds served, and up to date.

After the model store changes, new replica sets start beside the others. A keeper has one archive, so only those that
changed are loaded; a TorchServe, and a cluster, has all. A model is served from the copy of its archive that answered
last: an archive that is half copied or does not load takes nothing away.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.results import ArchiveState, ModelName, UnservedArchive
from cutaway.server.backends.backend import Backend, SetServing, Supervise
from cutaway.server.backends.remote_worker import RemoteWorker, WorkerPool
from cutaway.server.batching import within
from cutaway.server.file_watch import FileWatch
from cutaway.server.lifecycle.replica_set import ReplicaSet
from cutaway.server.memory import Shares, size_text
from cutaway.server.model_store import (
    Catalog,
    ModelStore,
    Unpacked,
    UnpackedArchives,
    archives_in,
    read_store,
    scan_store,
    version_key,
)
from cutaway.server.processes.worker_processes import Keepers
from cutaway.server.settings import Settings

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Routes:
    """The workers of every model, which may be of several replica sets; see `Workers`.

    Attributes:
        sends_ahead: True: the way to a worker takes time.
        changed: called when workers have changed.
        updated: set at the same moment.
    """

    def __init__(self) -> None:
        self.sends_ahead = True
        self.changed: Callable[[], None] = lambda: None
        self.updated = asyncio.Event()
        self._pools: dict[ModelName, WorkerPool] = {}

    def may_come(self, name: ModelName) -> bool:
        """Returns whether calls of a model may wait for a worker."""
        pool = self._pools.get(name)
        return pool is not None and pool.may_come(name)

    def of(self, name: ModelName) -> Sequence[RemoteWorker]:
        """Returns the workers of a model that take turns."""
        pool = self._pools.get(name)
        return pool.of(name) if pool else ()

    def lead(self, name: ModelName, pool: WorkerPool) -> None:
        """Sends the calls of a model to the workers of ``pool``."""
        self._pools[name] = pool
        pool.changed = self.tell
        self.tell()

    def lead_all(self, pools: Mapping[ModelName, WorkerPool]) -> None:
        """Sends the calls of these models to the workers of their pools, and those of other models nowhere."""
        self._pools = dict(pools)
        for pool in pools.values():
            pool.changed = self.tell
        self.tell()

    def leads_to(self, pool: WorkerPool) -> bool:
        """Returns whether any model's calls go to ``pool``."""
        return pool in self._pools.values()

    def tell(self) -> None:
        """Reports changed workers: batchers send waiting calls, and the supervisor checks which models serve."""
        self.updated.set()
        self.changed()


_POLL_S = 0.1
_SETTLE_S = 1.0
_PATIENCE_S = 5.0
"""The seconds that a slow model gets at least, at the start, after the last of the others has answered."""

_RETRY_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)

_MOST_MORE = 1.25
"""How many times the workers that the memory was divided among may share it: 60 % of all memory become 68 %."""


class Supervisor:
    """The replica sets over a model store, and the backend that calls them.

    Args:
        directory: the model store.
        settings: number of engines, limits and timeouts.
        workers: number of workers of each model in each engine; None for the archives' own.

    Attributes:
        backend: calls the current workers; the same object after a reload.
    """

    def __init__(self, directory: Path, settings: Settings, workers: int | None) -> None:
        self._directory = directory
        self._settings = settings
        self._watch = FileWatch(lambda: archives_in(self._directory), settle_s=_SETTLE_S, inodes=False)
        self._store = ModelStore()
        self._archives = UnpackedArchives(workers)
        self._wanted: dict[ModelName, Unpacked] = {}
        self._good: dict[ModelName, Unpacked] = {}
        self._failed: dict[Unpacked, str] = {}
        self._told: set[str] = set()
        self._is_reloading = False
        self._routes = Routes()
        self._keepers = Keepers()
        self._sets: list[ReplicaSet] = []
        self._current: list[ReplicaSet] = []
        self._shares: Shares | None = None
        self._retiring: set[asyncio.Future[None]] = set()
        self._threads: set[asyncio.Future[Any]] = set()
        self.backend: Backend

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[Backend, Supervise]]:
        """Starts the workers and waits for their models; stops them at the end of the block, or when the start is
        cancelled.

        Raises:
            CutawayError: an engine does not start, or no model answers.
        """
        loading = asyncio.get_running_loop().create_future()
        try:
            self._store = await self._in_thread(partial(read_store, self._directory))
            log.info(f"starting {_described(self._settings)}; the log is in {self._settings.log_dir}")
            self._wanted = await self._in_thread(partial(self._unpack, self._store, at_start=True))
            self._tell()
            self._store.require_models()
            self._current = self._sets_over(self._wanted)
            self._routes.lead_all(_pools(self._current))
            loading = asyncio.ensure_future(self._start(self._current))
            await self._until_usable(loading)
            self.backend = Backend(self._routes, self._catalog(), self._settings)
            yield self.backend, self._supervise
        finally:
            self._keepers.refuse()
            for each in (loading, *self._retiring):
                each.cancel()
            await asyncio.gather(loading, *self._retiring, *self._threads, return_exceptions=True)
            stopping = [self._stop(each, self._settings.grace_s) for each in self._sets]
            stopped = await asyncio.gather(*stopping, return_exceptions=True)
            await asyncio.to_thread(self._keepers.close)
            self._archives.close()
            if failures := [*filter(None, stopped)]:
                raise failures[0]

    async def _until_usable(self, loading: asyncio.Future[None]) -> None:
        """Waits at the start until every model has answered or failed; raises an error if none has answered.

        Does not wait for ever for slow models: once some have answered, the others get half as long again, and at least
        `_PATIENCE_S`. After that, calls of the slow models wait for them.
        """
        loop = asyncio.get_running_loop()
        begun = latest = loop.time()
        answered = 0
        while not loading.done():
            await asyncio.wait([loading], timeout=_POLL_S)
            now = loop.time()
            if len(self._good) > answered:
                answered, latest = len(self._good), now
            if self._good and now - latest > max(_PATIENCE_S, (latest - begun) / 2):
                names = ", ".join(f"{name.model} {name.version}" for name in self._loading)
                log.warning(f"the other models are served while these still load: {names}")
                return
        loading.result()
        if not self._good:
            faults = "; ".join(item.message for item in self._unserved())
            raise error(Reason.MODEL_NOT_LOADED, f"no model can be served: {faults}")

    async def _supervise(self, set_serving: SetServing) -> None:
        """Restarts processes and workers that end or hang, and reloads the model store when it changes.

        Returns only by an exception: that of the reload.

        Args:
            set_serving: called whenever the models that serve, or the archives that do not, change.
        """
        for each in self._current:
            each.supervise()
        reloading = asyncio.ensure_future(self._reload_on_change())
        reported: tuple[set[ModelName], Catalog] = set(), Catalog(())
        try:
            while not reloading.done():
                now = {name for name in self._good if any(map(self._serves, self._routes.of(name)))}
                if (now, self.backend.catalog) != reported:
                    reported = now, self.backend.catalog
                    await set_serving(now)
                with suppress(asyncio.TimeoutError):  # no worker started or ended; one may hang
                    await within(_POLL_S, self._routes.updated.wait())
                self._routes.updated.clear()
        finally:
            reloading.cancel()
            await asyncio.wait([reloading])
        if not reloading.cancelled():
            reloading.result()

    def _serves(self, worker: RemoteWorker) -> bool:
        """Returns whether health checks count a worker as serving: late by less than half of `Settings.hang_s`."""
        return worker.late_s < self._settings.hang_s / 2

    async def _reload_on_change(self) -> None:
        """Reloads the store after every change.

        A failure (a full disk, no file descriptors) ends no running worker. The reload is tried again, at longer and
        longer intervals.
        """
        due, pauses = False, iter(_RETRY_PAUSES_S)
        while True:
            await asyncio.sleep(_POLL_S)
            try:
                due = self._watch.changed() or due
                if due:
                    self._is_reloading = True
                    await self._reload()
                due, pauses = False, iter(_RETRY_PAUSES_S)
            except Exception as failure:
                pause_s = next(pauses, _RETRY_PAUSES_S[-1])
                why = failure.message if isinstance(failure, CutawayError) else f"{type(failure).__name__}: {failure}"
                log.warning(
                    f"the model store could not be loaded ({why}); the previous models stay in service, and it is "
                    f"tried again in {pause_s:g} s",
                    exc_info=not isinstance(failure, CutawayError),
                )
                await asyncio.sleep(pause_s)
            finally:
                self._is_reloading = False

    async def _reload(self) -> None:
        """Serves the current content of the store.

        A model that answers is served at once. One that does not load leaves its predecessor in service: where a
        replica set has all models, one starts that has the predecessor, unless the current one is already that.
        """
        store = await self._in_thread(partial(scan_store, self._directory))
        if not (store.archives or store.unserved):
            log.warning(f"the previous models stay in service: {self._directory} holds no .mar archive")
            return
        wanted = await self._in_thread(partial(self._unpack, store))
        broken = {item.archive for item in store.unserved}
        wanted |= {name: each for name, each in self._good.items() if name not in wanted and each.path.name in broken}
        self._store, self._wanted = store, wanted
        self._tell()
        while (target := self._target()) != _content(self._current):
            if not target:
                log.warning("the previous models stay in service: nothing in the store can be served")
                break
            await self._try(target)
        self._retire_unused()
        self._is_reloading = False
        self._delete_unused()
        self._failed = {each: why for each, why in self._failed.items() if each in wanted.values()}
        self._tell()

    def _target(self) -> dict[ModelName, Unpacked]:
        """Returns the archives to serve: those of the store, and predecessors of those that do not load."""
        chosen = {name: self._good.get(name) if each in self._failed else each for name, each in self._wanted.items()}
        return {name: each for name, each in chosen.items() if each is not None}

    async def _try(self, target: dict[ModelName, Unpacked]) -> None:
        """Starts the replica sets that ``target`` lacks, and makes all sets over ``target`` the current ones.

        If a model fails that has a predecessor, the current sets stay; `_reload` goes on with a target that has the
        predecessor.

        Raises:
            CutawayError: an engine does not start, or a model that serves does not load once more.
        """
        before = {*self._sets}
        try:
            sets = self._sets_over(target)
            new = [each for each in sets if each not in before]
            loaded = ", ".join(f"{name.model} {name.version}" for each in new for name in each.models) or "nothing"
            log.info(f"the model store has changed; loading beside the models that are served: {loaded}")
            await self._start(new)
            for each in new:
                self._raise_if_lost(each)
        except BaseException:
            self._retire_unused()
            raise
        sets = [each for each in sets if each.sound]
        if sets and self._target() == _content(sets):
            self._good = {name: each.models[name] for each in sets for name in each.answered}
            self._routes.lead_all(_pools(sets))
            self._current = sets
            for each in sets:
                each.supervise()

    async def _start(self, sets: Sequence[ReplicaSet]) -> None:
        await asyncio.gather(*(each.start(partial(self._settled, each)) for each in sets))

    def _raise_if_lost(self, new: ReplicaSet) -> None:
        """Raises an error if an archive that is served does not load in the new set; `_reload_on_change` retries."""
        for name, why in new.failed.items():
            if new.models[name] is self._good.get(name):
                what = f"{name.model} {name.version}, which is served, does not load once more: {why}"
                raise error(Reason.BACKEND_UNAVAILABLE, what)

    def _unpack(self, store: ModelStore, at_start: bool = False) -> dict[ModelName, Unpacked]:
        """Returns unpacked copies of the archives of ``store``; one that is changed meanwhile is marked as broken.

        Raises:
            CutawayError: one cannot be unpacked, for lack of room. At the start it is marked as broken instead.
            OSError: as above.
        """
        copies = {}
        for name, path in [*store.archives.items()]:
            try:
                copies[name] = self._archives.of(name, path, self._failed)
            except (CutawayError, OSError) as failure:
                changes = isinstance(failure, FileNotFoundError) or (
                    isinstance(failure, CutawayError) and failure.reason == Reason.ARCHIVE_CORRUPT
                )
                if not (changes or at_start):
                    raise
                store.mark_broken(name, str(failure), ArchiveState.NOT_WHOLE if changes else ArchiveState.FAILED)
        return copies

    def _sets_over(self, target: Mapping[ModelName, Unpacked]) -> list[ReplicaSet]:
        """Returns replica sets over ``target``: those that serve such parts of it, and new ones for the rest.

        If there are many more workers than the memory is divided among, it is divided anew, and all sets are new.
        """
        self._shares = self._shares_for(target)
        by_version = sorted(target, key=lambda name: version_key(name.version), reverse=True)
        parts = [[name] for name in by_version] if self._is_divisible else [by_version]
        return [self._set_over({name: target[name] for name in part}, self._shares, target) for part in parts]

    def _set_over(
        self, part: dict[ModelName, Unpacked], shares: Shares, target: Mapping[ModelName, Unpacked]
    ) -> ReplicaSet:
        """Returns the existing replica set with exactly these archives and shares, none failed; else a new set."""
        for each in self._sets:
            if each.shares is shares and each.models == part == each.sound and not each.retired:
                return each
        first = self._first(part, target)
        new = ReplicaSet(part, self._settings, self._archives.root, shares=shares, first=first, keepers=self._keepers)
        self._sets.append(new)
        return new

    def _first(self, part: Mapping[ModelName, Unpacked], target: Mapping[ModelName, Unpacked]) -> int:
        """Returns the number of a new set's first worker; workers take GPUs by their numbers.

        A set that replaces a like one (same models, as many workers) takes over its numbers. Other sets get the first
        free range of numbers.
        """
        models, workers = {name.model for name in part}, sum(each.workers for each in part.values())
        taken: set[int] = set()
        for each in reversed(self._sets):
            is_replaced = each.models.keys() == part.keys() or each.models.keys().isdisjoint(target)
            is_like = {name.model for name in each.models} == models and each.workers == workers
            if is_replaced and is_like and each.first not in taken:
                return each.first
            if not each.retired:
                taken.add(each.first)
        number = 0
        for numbers in sorted((each.numbers for each in self._sets), key=lambda numbers: numbers.start):
            if number + workers * self._settings.replicas <= numbers.start:
                break
            number = max(number, numbers.stop)
        return number

    @property
    def _is_divisible(self) -> bool:
        """Whether each archive has an engine of its own."""
        return self._settings.engine == "processes"

    def _shares_for(self, target: Mapping[ModelName, Unpacked]) -> Shares:
        """Returns the shares of the memory: those of before, unless there are many more workers than they are for."""
        settings, before = self._settings, self._shares
        workers = settings.replicas * sum(each.workers for each in target.values())
        if before is not None and self._is_divisible and workers <= before.workers * _MOST_MORE:
            return before
        directory = self._archives.root / f"memory-{workers}"
        directory.mkdir(exist_ok=True)
        if settings.request_memory_bytes:
            return Shares(workers, settings.request_memory_bytes, 0, directory)
        shares = Shares.among(workers, directory, settings.memory_bytes)
        size = sum(each.size for each in target.values())
        log.info(
            f"memory: {size_text(shares.own)} for the requests of each of {workers} workers, and "
            f"{size_text(shares.pool)} that they share (CUTAWAY_MEMORY_BYTES changes it); archives of {size_text(size)}"
        )
        return shares

    def _settled(self, which: ReplicaSet, name: ModelName) -> None:
        """Serves a model that has answered, or notes that its archive does not load."""
        archive = which.models[name]
        if self._good.get(name) is not archive and not which.retired:
            if name in which.failed:
                self._failed[archive] = which.failed[name]
            else:
                self._good[name] = archive
                self._routes.lead(name, which.pool)
                log.info(f"serving {name.model} {name.version}")
                if which not in self._current:
                    which.supervise()
            self._tell()

    def _catalog(self) -> Catalog:
        """Returns the models that accept calls, and the archives that are not served."""
        return Catalog({*self._good, *self._loading}, self._unserved())

    @property
    def _loading(self) -> list[ModelName]:
        return [name for each in self._current for name in each.loading]

    def _unserved(self) -> Iterator[UnservedArchive]:
        for item in self._store.unserved:
            known = next((name for name, each in self._good.items() if each.path.name == item.archive), None)
            yield replace(item, model=known.model, version=known.version, previous_serves=True) if known else item
        for name, archive in self._wanted.items():
            if self._good.get(name) is not archive:
                why = self._failed.get(archive)
                state = ArchiveState.FAILED if why else ArchiveState.LOADING
                words = why or "its model has not answered yet"
                yield UnservedArchive(archive.path.name, name.model, name.version, state, words, name in self._good)

    def _tell(self) -> None:
        """Tells the operator, callers and health checks what is served and what is not."""
        messages = {item.message for item in self._unserved() if item.state != ArchiveState.LOADING}
        for message in sorted(messages - self._told):
            log.warning(f"not served: {message}")
        self._told = messages
        if hasattr(self, "backend"):
            self.backend.set_catalog(self._catalog())
        self._routes.tell()

    def _retire_unused(self) -> None:
        """Ends the replica sets that no calls go to; calls that run there may finish."""
        for each in self._sets:
            if each not in self._current and not self._routes.leads_to(each.pool) and not each.retired:
                each.retired = True
                grace_s = max(self._settings.grace_s, each.pool.busy_for_s)
                retiring = asyncio.ensure_future(self._stop(each, grace_s))
                self._retiring.add(retiring)
                retiring.add_done_callback(self._retiring.discard)

    async def _stop(self, replica_set: ReplicaSet, grace_s: float) -> None:
        try:
            await replica_set.stop(grace_s)
        finally:
            self._sets.remove(replica_set)
            self._delete_unused()

    def _delete_unused(self) -> None:
        """Deletes the copies of archives that are neither in the store nor in a replica set; not amid a reload, which
        makes copies before it uses them."""
        if self._is_reloading:
            return
        self._archives.keep({*self._wanted.values(), *(each for one in self._sets for each in one.models.values())})

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Runs ``work`` in a thread, for which the end of `running` waits even if the caller is cancelled."""
        future = asyncio.ensure_future(asyncio.to_thread(work))
        self._threads.add(future)
        future.add_done_callback(self._threads.discard)
        return await asyncio.shield(future)


def _content(sets: Iterable[ReplicaSet]) -> dict[ModelName, Unpacked]:
    """Returns the archives of ``sets`` that have not failed."""
    return {name: archive for each in sets for name, archive in each.sound.items()}


def _pools(sets: Iterable[ReplicaSet]) -> dict[ModelName, WorkerPool]:
    return {name: each.pool for each in sets for name in each.sound}


def _described(settings: Settings) -> str:
    if settings.engine != "torchserve":
        return "the workers"
    return "TorchServe" if settings.replicas == 1 else f"{settings.replicas} TorchServe processes"
