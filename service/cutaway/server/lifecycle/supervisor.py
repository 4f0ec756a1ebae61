"""Keeps the workers of a model store running and up to date.

Engines start the workers; one that ends unexpectedly or hangs is restarted. After the model store changes, a new
replica set starts beside the old one and replaces it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import chain, repeat

import structlog

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.results import ModelName
from cutaway.contract.wire import grpc_status
from cutaway.server.archive import reader
from cutaway.server.backends.backend import Backend, SetServing, Supervise
from cutaway.server.backends.remote_worker import RemoteWorker, WorkerPool
from cutaway.server.batching import NotBegun
from cutaway.server.file_watch import FileWatch
from cutaway.server.memory import own_and_pool
from cutaway.server.model_store import ModelStore, archives_in, read_store
from cutaway.server.processes.environment import WorkerEnvironment
from cutaway.server.processes.process_group import Engine
from cutaway.server.processes.torchserve import TorchServe
from cutaway.server.processes.worker_processes import WorkerProcesses
from cutaway.server.ray.workers import RayWorkers
from cutaway.server.settings import Settings
from cutaway.server.time_limit import within
from cutaway.v1 import worker_pb2

log = structlog.get_logger(__name__)

_READY_POLL_S = 0.05


async def _unready_models(
    engine: Engine, pool: WorkerPool, store: ModelStore, settings: Settings
) -> dict[ModelName, str]:
    """Waits for the models of ``store``; returns those that do not answer, with the reason.

    It waits until every model has answered a real call, has reported that it cannot load, or has exceeded
    `Settings.start_timeout_s`.

    Raises:
        CutawayError: the processes of ``engine`` ended.
    """

    async def fault(name: ModelName) -> str:
        try:
            return await within(settings.start_timeout_s, _answer(engine, pool, name))
        except asyncio.TimeoutError:
            return f"it did not answer within {settings.start_timeout_s:g} s; the log may say why"

    faults = await asyncio.gather(*map(fault, store.archives))
    return {name: why for name, why in zip(store.archives, faults) if why}


async def _answer(engine: Engine, pool: WorkerPool, name: ModelName) -> str:
    """Waits until the model answers, and returns the empty string, or why it cannot answer.

    Of a model whose code does not load, only the log has the reason.
    """
    while True:
        if engine.poll() is not None:
            raise error(Reason.BACKEND_UNAVAILABLE, f"{engine.name} ended while it started:\n{engine.log_tail()}")
        if why := _load_failure(engine.log_tail(), name):
            return why
        for worker in pool.of(name):
            if engine.has_worker(worker.pid):
                try:
                    return await _describe(worker)
                except (CutawayError, NotBegun):
                    pass  # it has died; the next one may live
        await asyncio.sleep(_READY_POLL_S)


async def _describe(worker: RemoteWorker) -> str:
    """Asks for a model's description; returns the error that the worker replied with, or the empty string."""
    replies: list[bytes] = []
    await worker.run([worker_pb2.WorkerCall(describe=b"")], lambda _, reply: replies.append(reply))
    reply = worker_pb2.WorkerReply.FromString(replies[0])
    return str(grpc_status.from_failure(reply.failure)) if reply.HasField("failure") else ""


def _load_failure(log: str, name: ModelName) -> str:
    """Returns what a worker logged if it could not load the model, or the empty string."""
    mark = f"cutaway cannot load {name.model} {name.version}: "
    return next((line.partition(mark)[2] for line in log.splitlines() if mark in line), "")


_POLL_S = 0.1
_RESTART_DELAYS_S = (0.0, 1.0, 2.0, 5.0, 10.0)
"""Delays before the attempts of a restart; the last one is used for all further attempts too."""


class ReplicaSet:
    """Engines over a model store, as many as the settings say.

    Args:
        store: the models.
        settings: number of engines, limits and timeouts.
        workers: number of workers of each model in each engine; None for the archives' own.

    Attributes:
        pool: their workers.
    """

    def __init__(self, store: ModelStore, settings: Settings, workers: int | None) -> None:
        self.store = store
        self.pool = WorkerPool()
        self._settings = settings
        self._workers = workers
        self._engines = [self._engine(number) for number in range(settings.replicas)]
        self._down: set[Engine] = set()
        self._supervision: asyncio.Future[list[None]] = asyncio.get_running_loop().create_future()
        self._ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starting: set[asyncio.Future[None]] = set()

    def _engine(self, number: int) -> Engine:
        """Returns the engine with an index among those of this set."""
        settings, archives, workers = self._settings, self.store.archives, self._workers
        if settings.engine == "ray":
            environment = WorkerEnvironment(settings.max_message_bytes, None, settings.request_memory_bytes)
            log_dir, sockets = settings.log_dir, self.pool.path
            return RayWorkers(
                archives, environment, workers=workers, log_dir=log_dir, settings=settings, sockets=sockets
            )
        in_engine = sum(workers or reader.workers(path) for path in archives.values())
        own, pool = settings.request_memory_bytes or 0, 0
        if not own:
            own, pool = own_and_pool(settings.replicas * in_engine, settings.memory_bytes)
        log.info(
            f"memory: {_gib(own)} for the requests of each of {settings.replicas * in_engine} workers, and "
            f"{_gib(pool)} that they share; archives of {_gib(sum(path.stat().st_size for path in archives.values()))}"
        )
        environment = WorkerEnvironment(settings.max_message_bytes, self.pool.path, own, pool, settings.replicas)
        if settings.engine == "processes":
            return WorkerProcesses(archives, environment, workers=workers, log_dir=settings.log_dir)
        return TorchServe(
            next(iter(archives.values())).parent,
            [path.name for path in archives.values()],
            environment=environment,
            workers=workers,
            batch=1,
            log_dir=settings.log_dir,
            number=number,
            start_timeout_s=settings.start_timeout_s,
        )

    async def start(self) -> None:
        """Starts the engines, and waits until every model has answered in all of them; marks others as broken.

        Raises:
            CutawayError: an engine does not start, or no model answers.
        """
        self.pool.open()
        unready = await asyncio.gather(*map(self._start, self._engines))
        for name, why in {name: why for models in unready for name, why in models.items()}.items():
            log.warning(self.store.mark_broken(name, why))
        self.store.require_models()

    async def _start(self, engine: Engine) -> dict[ModelName, str]:
        await self._in_thread(engine.start)
        return await _unready_models(engine, self.pool, self.store, self._settings)

    def supervise(self) -> None:
        """Begins to kill workers that hang, and to restart engines that end or hang."""
        self._supervision = asyncio.gather(*map(self._supervise, self._engines))
        self._ending = asyncio.ensure_future(self._end_hanging_workers())

    def stop_supervising(self) -> None:
        """Ends the supervision: no worker is killed and no engine restarted any more."""
        self._supervision.cancel()
        self._ending.cancel()

    @property
    def serving(self) -> set[ModelName]:
        """The models that have a worker that does not hang."""
        return {worker.name for worker in self.pool.workers if worker.late_s < self._settings.hang_s / 2}

    async def _end_hanging_workers(self) -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            for worker in self.pool.workers:
                if worker.late_s > self._settings.hang_s:
                    self._end(worker)

    def _end(self, worker: RemoteWorker) -> None:
        for engine in self._engines:
            if engine.has_worker(worker.pid):
                log.warning(f"a worker of {worker.name.model} {worker.name.version} hangs; starting a new one")
                engine.end_worker(worker.pid)
        worker.close()

    async def _supervise(self, engine: Engine) -> None:
        while True:
            what = await self._fault(engine)
            log.warning(f"{engine.name} {what}; restarting it")
            self._set_down(engine, True)
            await self._restart(engine)
            self._set_down(engine, False)
            log.info(f"{engine.name} is available again")

    async def _fault(self, engine: Engine) -> str:
        """Waits until an engine ends or hangs, and returns what is wrong with it."""
        liveness = engine.liveness(self._settings.hang_s)
        try:
            while not liveness.hangs:
                with suppress(OSError):  # no file descriptor is left to look with
                    if engine.poll() is not None:
                        return "ended unexpectedly; its log says why"
                await asyncio.sleep(_POLL_S)
            return "does nothing any more"
        finally:
            await liveness.close()

    def _set_down(self, engine: Engine, down: bool) -> None:
        (self._down.add if down else self._down.discard)(engine)
        self.pool.set_available(len(self._down) < len(self._engines))

    async def _restart(self, engine: Engine) -> None:
        """Starts an engine again, as often as it takes: what serves, and health checks, go on meanwhile."""
        for delay_s in chain(_RESTART_DELAYS_S, repeat(_RESTART_DELAYS_S[-1])):
            await asyncio.sleep(delay_s)
            try:
                await self._in_thread(partial(engine.stop, 0.0))
                await self._start(engine)
            except Exception as failure:  # an unforeseen one, such as a full disk, may be over at the next try
                why = failure.message if isinstance(failure, CutawayError) else f"{type(failure).__name__}: {failure}"
                log.warning(f"{engine.name} did not start: {why.splitlines()[0]}")
            else:
                break

    async def _in_thread(self, work: Callable[[], None]) -> None:
        """Runs ``work`` in a thread; `stop` waits for it even if the caller is cancelled."""
        future = asyncio.ensure_future(asyncio.to_thread(work))
        self._starting.add(future)
        future.add_done_callback(self._starting.discard)
        await asyncio.shield(future)

    async def stop(self, grace_s: float) -> None:
        """Stops all engines; running calls get ``grace_s`` seconds to finish."""
        self.stop_supervising()
        # A start that was cancelled must end first: only then can its process be stopped.
        if self._starting:
            await asyncio.wait(self._starting)
        await self.pool.drain(grace_s)
        await asyncio.gather(*(asyncio.to_thread(engine.stop, grace_s) for engine in self._engines))
        self.pool.close()


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
        self._current = ReplicaSet(store, settings, workers)
        self._running = [self._current]
        self._retiring: set[asyncio.Future[None]] = set()
        self._watch = FileWatch(lambda: archives_in(self._directory), settle_s=_SETTLE_S, inodes=False)
        self.backend: Backend

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
            for retiring in self._retiring:
                retiring.cancel()
            await asyncio.gather(*self._retiring, return_exceptions=True)
            await asyncio.gather(*(self._stop(each, self._settings.grace_s) for each in [*self._running]))

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
                    await within(_POLL_S, self._current.pool.updated.wait())
                self._current.pool.updated.clear()
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
        old, new = self._current, None
        try:
            store = await asyncio.to_thread(read_store, self._directory)
            for why in store.faults:
                log.warning(f"not served: {why}")
            new = ReplicaSet(store, self._settings, self._workers)
            self._running.append(new)
            await new.start()
        except Exception as failure:
            if new is not None:
                await self._stop(new, 0.0)
            if not isinstance(failure, CutawayError):
                raise
            log.warning(f"the previous models stay in service: {failure.message.splitlines()[0]}")
            return
        self._current = new
        old.stop_supervising()
        new.supervise()
        # Running calls finish on the old processes; all others go to the new ones.
        self.backend.switch(new.pool, store.catalog)
        retiring = asyncio.ensure_future(self._stop(old, max(self._settings.grace_s, old.pool.busy_for_s)))
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)
        for name in store.archives:
            log.info(f"serving {name.model} {name.version}")

    async def _stop(self, replica_set: ReplicaSet, grace_s: float) -> None:
        await replica_set.stop(grace_s)
        self._running.remove(replica_set)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def _described(settings: Settings) -> str:
    if settings.engine != "torchserve":
        return "the workers"
    return "TorchServe" if settings.replicas == 1 else f"{settings.replicas} TorchServe processes"
