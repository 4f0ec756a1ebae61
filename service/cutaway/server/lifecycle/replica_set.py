"""A replica set: engines over one model store, which are restarted when they end unexpectedly or hang.

An engine starts the workers of a model store, and a new one for every worker that ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from typing import Protocol

import structlog

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.results import ModelName
from cutaway.contract.wire import grpc_status
from cutaway.server.archive import reader
from cutaway.server.backends.remote_worker import RemoteWorker, WorkerPool
from cutaway.server.batching import NotBegun
from cutaway.server.memory import share_of_worker
from cutaway.server.model_store import ModelStore
from cutaway.server.processes.environment import WorkerEnvironment
from cutaway.server.processes.torchserve import TorchServe
from cutaway.server.processes.worker_processes import WorkerProcesses
from cutaway.server.ray.workers import RayWorkers
from cutaway.server.settings import Settings
from cutaway.server.time_limit import within
from cutaway.v1 import worker_pb2


class Liveness(Protocol):
    """A watch over an engine until `close`."""

    @property
    def hangs(self) -> bool:
        """Whether the engine runs but does nothing any more."""

    async def close(self) -> None:
        """Ends the watch."""


class Engine(Protocol):
    """Processes with the workers of all models of a store."""

    @property
    def name(self) -> str:
        """The name for people, such as ``TorchServe``."""

    def start(self) -> None:
        """Starts the processes; their workers load their models after that."""

    def poll(self) -> int | None:
        """Returns None while it runs, else its exit status."""

    def has_worker(self, pid: int) -> bool:
        """Returns whether ``pid`` is one of its processes; 0 is a worker that may be on another machine."""

    def end_worker(self, pid: int) -> None:
        """Ends one of its processes, which hangs; a new worker follows."""

    def liveness(self, hang_s: float) -> Liveness:
        """Begins to watch the engine, in an event loop; it hangs if it does nothing for ``hang_s`` seconds."""

    def log_tail(self) -> str:
        """Returns the end of its log since the last start; also after it has ended."""

    def stop(self, grace_s: float) -> None:
        """Ends all processes, and deletes their files; they get ``grace_s`` seconds to end by themselves."""


_READY_POLL_S = 0.05


async def unready_models(
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
            return await within(settings.start_timeout_s, _fault(engine, pool, name))
        except asyncio.TimeoutError:
            return f"it did not answer within {settings.start_timeout_s:g} s; the log may say why"

    faults = await asyncio.gather(*map(fault, store.archives))
    return {name: why for name, why in zip(store.archives, faults) if why}


async def _fault(engine: Engine, pool: WorkerPool, name: ModelName) -> str:
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


log = structlog.get_logger(__name__)

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
        self._engines = [self._engine(workers, number) for number in range(settings.replicas)]
        self._down: set[Engine] = set()
        self._supervision: asyncio.Future[list[None]] = asyncio.get_running_loop().create_future()
        self._ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starting: set[asyncio.Future[None]] = set()

    def _engine(self, workers: int | None, number: int) -> Engine:
        environment = WorkerEnvironment(
            self._settings.max_message_bytes,
            self.pool.path,
            self._settings.request_memory_bytes or share_of_worker(self._workers(workers)),
            self._settings.replicas,
        )
        if self._settings.engine == "processes":
            return WorkerProcesses(self.store.archives, environment, workers=workers, log_dir=self._settings.log_dir)
        if self._settings.engine == "ray":
            return RayWorkers(self.store.archives, self._settings, self.pool.path, workers=workers)
        archives = list(self.store.archives.values())
        return TorchServe(
            archives[0].parent,
            [path.name for path in archives],
            environment=environment,
            workers=workers,
            batch=1,
            log_dir=self._settings.log_dir,
            number=number,
            start_timeout_s=self._settings.start_timeout_s,
        )

    def _workers(self, per_model: int | None) -> int:
        """Returns the number of workers in all engines."""
        in_engine = sum(per_model or reader.workers(path) for path in self.store.archives.values())
        return self._settings.replicas * in_engine

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
        return await unready_models(engine, self.pool, self.store, self._settings)

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
