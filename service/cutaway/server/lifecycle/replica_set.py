"""Engines that run the workers of the same archives, started and supervised together.

An engine that ends unexpectedly or hangs is started again, and so is a worker.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any, ClassVar

import structlog

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.results import ModelName
from cutaway.contract.wire import grpc_status
from cutaway.contract.wire.worker_reply import Reply
from cutaway.server import load_records
from cutaway.server.archive import reader
from cutaway.server.backends.backend import Answer
from cutaway.server.backends.remote_worker import RemoteWorker, WorkerPool
from cutaway.server.batching import Answers, NotBegun, within
from cutaway.server.memory import Shares
from cutaway.server.model_store import Unpacked
from cutaway.server.processes.environment import WorkerEnvironment
from cutaway.server.processes.process_group import Engine, Leader, led
from cutaway.server.processes.torchserve import TorchServe
from cutaway.server.processes.worker_processes import Keepers, Kept, WorkerProcesses
from cutaway.server.ray.plan import PlannedModel, RayPlan
from cutaway.server.settings import Settings
from cutaway.v1 import worker_pb2

log = structlog.get_logger(__name__)

_READY_POLL_S = 0.05
_POLLS_PER_LOOK = 5


@dataclass(eq=False)
class RayWorkers(Kept):
    """The keeper of the workers on a Ray cluster; a cluster that it starts itself ends with it.

    It has Ray Serve start them, and passes calls on to them.

    The archives' number of workers is the smallest of each model.

    Args:
        settings: the cluster, and the CPUs and GPUs of a worker.
        sockets: the directory in which the gateway looks for workers.
    """

    _: KW_ONLY
    settings: Settings
    sockets: Path
    _run: str = field(init=False, default_factory=lambda: f"cutaway-{secrets.token_hex(4)}")

    name = "the process that starts workers on Ray"
    log_name: ClassVar = "ray.log"
    end_s: ClassVar = 10.0
    longest_name: ClassVar = len("/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store")  # Ray's

    def _launch(self, directory: Path) -> Leader:
        models = tuple(self._planned(name, each, directory) for name, each in self.archives.items())
        plan = RayPlan(run=self._run, models=models, sockets=self.sockets, settings=self.settings).model_dump_json()
        # Run as a module, not imported: it imports Ray.
        command = [sys.executable, "-m", "cutaway.server.ray.keeper", plan]
        return led(command, directory, self.environment.variables(), self._log.path)

    def _planned(self, name: ModelName, archive: Unpacked, directory: Path) -> PlannedModel:
        packed = directory / f"{archive.directory.name}.mar"
        reader.pack(archive.directory, packed)
        return PlannedModel(name, packed, archive.workers, max(archive.workers, self.settings.ray_max_workers or 0))

    def has_worker(self, pid: int) -> bool:
        """Returns whether ``pid`` is that of a worker on the cluster."""
        return pid == 0

    def end_worker(self, pid: int) -> None:
        """Does nothing: Ray Serve finds by itself that a worker hangs (`Replica.check_health`)."""


async def _describe(worker: RemoteWorker) -> str:
    """Asks for a model's description; returns the error that the worker replied with, or the empty string."""
    replied: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def end(_: Answers[Answer], failure: Exception | None) -> None:
        if not (failure is None or replied.done()):
            replied.set_exception(failure)

    answers = Answers([replied], alone=False, let_go=lambda _: None, ended=end)
    worker.send([worker_pb2.WorkerCall(describe=b"")], answers, 0)
    beside = Reply.read((await replied).reply).beside
    return str(grpc_status.from_failure(beside.failure)) if beside.HasField("failure") else ""


_POLL_S = 0.1
_POLLS_PER_ROTATION = 50
_RESTART_DELAYS_S = (0.0, 1.0, 2.0, 5.0, 10.0)
"""Delays before the attempts of a restart; the last one is used for all further attempts too."""


class ReplicaSet:
    """Engines over unpacked archives, as many as the settings say.

    Args:
        models: the archives. The highest version of a model comes first.
        settings: number of engines, limits and timeouts.
        root: the directory with all unpacked archives, which is deleted if this process is killed.
        shares: of the memory.
        first: the number of the first worker among all workers of the server.
        keepers: starts keepers.

    Attributes:
        models: the archives.
        shares: the argument.
        pool: their workers.
        answered: the models that have answered in all engines.
        failed: the models that do not load, with the reason.
        retired: whether it is being stopped.
        first: the argument.
    """

    def __init__(
        self,
        models: Mapping[ModelName, Unpacked],
        settings: Settings,
        root: Path,
        *,
        shares: Shares,
        first: int,
        keepers: Keepers,
    ) -> None:
        self.models = dict(models)
        self.shares = shares
        self.pool = WorkerPool()
        self.answered: set[ModelName] = set()
        self.failed: dict[ModelName, str] = {}
        self.retired = False
        self.first = first
        self._settings = settings
        self._root = root
        self._keepers = keepers
        self._engines = [self._engine(number, first + number * self.workers) for number in range(settings.replicas)]
        self._down: set[Engine] = set()
        self._supervision: list[asyncio.Future[None]] = []
        self._starting: set[asyncio.Future[None]] = set()

    @property
    def loading(self) -> list[ModelName]:
        """The models that may answer yet."""
        return [name for name in self.models if name not in self.answered and name not in self.failed]

    @property
    def workers(self) -> int:
        """The workers of each engine."""
        return sum(each.workers for each in self.models.values())

    @property
    def numbers(self) -> range:
        """The numbers of its workers among all workers of the server."""
        return range(self.first, self.first + self.workers * self._settings.replicas)

    @property
    def sound(self) -> dict[ModelName, Unpacked]:
        """The archives of the models that have not failed."""
        return {name: each for name, each in self.models.items() if name not in self.failed}

    def _engine(self, number: int, first: int) -> Engine:
        """Returns the engine with an index among those of this set, whose first worker has the number ``first``."""
        settings, archives, root = self._settings, self.models, self._root
        if settings.engine == "ray":
            environment = WorkerEnvironment(
                settings.max_message_bytes, shares=self.shares if settings.request_memory_bytes else None
            )
            sockets, log_dir = self.pool.path, settings.log_dir
            return RayWorkers(archives, environment, log_dir=log_dir, settings=settings, sockets=sockets, root=root)
        proofs = settings.proofs_beside(next(iter(archives.values())).path.parent)
        environment = WorkerEnvironment(
            settings.max_message_bytes, self.pool.path, self.shares, settings.replicas, proofs_dir=proofs
        )
        if settings.engine == "processes":
            return WorkerProcesses(
                archives,
                environment,
                log_dir=settings.log_dir,
                first=first,
                load_s=settings.start_timeout_s,
                keepers=self._keepers,
                root=root,
            )
        return TorchServe(
            [each.directory for each in archives.values()],
            environment=environment,
            root=self._root,
            log_dir=settings.log_dir,
            number=number,
            start_timeout_s=settings.start_timeout_s,
        )

    async def start(self, settled: Callable[[ModelName], None]) -> None:
        """Starts the engines, and returns when every model has answered a real call in all of them, has not loaded, or
        has exceeded `Settings.start_timeout_s`; calls ``settled`` with each as soon as that is known.

        Raises:
            CutawayError: an engine does not start.
        """
        self.pool.open()

        async def settle(name: ModelName) -> None:
            faults = await asyncio.gather(*(self._fault_of(engine, name) for engine in self._engines))
            if why := next(filter(None, faults), ""):
                self.failed[name] = why
            else:
                self.answered.add(name)
            settled(name)

        await asyncio.gather(*(self._in_thread(engine.start) for engine in self._engines))
        await asyncio.gather(*map(settle, self.models))

    async def _fault_of(self, engine: Engine, name: ModelName, restarting: bool = False) -> str:
        """Waits until a model answers; returns why it cannot, or the empty string.

        Raises:
            CutawayError: the engine has ended, and nobody but the caller starts it again.
        """
        try:
            why = await within(self._settings.start_timeout_s, self._answer(engine, name, restarting))
            if fits := load_records.noted(self.pool.path, name, load_records.LOADED):
                log.info(f"{name.model} {name.version}: {fits}")
            return why
        except asyncio.TimeoutError:
            printed = load_records.last_words(self.pool.path, name)
            words = f"; its last words: {printed}" if printed else "; the log may say why"
            return f"it did not answer within {self._settings.start_timeout_s:g} s{words}"

    async def _answer(self, engine: Engine, name: ModelName, restarting: bool) -> str:
        """Waits as `_fault_of`, without a limit."""
        polls = 0
        while True:
            if (restarting or not self._supervision) and engine.poll() is not None:
                raise error(Reason.BACKEND_UNAVAILABLE, f"{engine.name} ended while it started:\n{engine.log_tail()}")
            if why := load_records.noted(self.pool.path, name, load_records.FAILED):
                return why
            # Rarely, because a look at all records takes a while.
            deaths = load_records.deaths(self.pool.path, name) if polls % _POLLS_PER_LOOK == 0 else []
            if len(deaths) >= load_records.MOST_DEATHS:
                return f"{len(deaths)} of its processes ended: {max(deaths, key=len)}"
            for worker in self.pool.of(name):
                if engine.has_worker(worker.pid):
                    try:
                        return await _describe(worker)
                    except (CutawayError, NotBegun):
                        pass  # it has died; the next one may live
            polls += 1
            await asyncio.sleep(_READY_POLL_S)

    def supervise(self) -> None:
        """Begins, if it has not, to kill workers that hang, and to restart engines that end or hang."""
        if self._supervision:
            return
        work = [*map(self._supervise, self._engines), self._end_hanging_workers()]
        self._supervision = [asyncio.ensure_future(each) for each in work]

    async def _stop_supervising(self) -> None:
        for each in self._supervision:
            each.cancel()
        await asyncio.gather(*self._supervision, return_exceptions=True)

    async def _end_hanging_workers(self) -> None:
        """Ends workers that are late by more than `Settings.hang_s`, and rotates the logs; runs until cancelled."""
        for poll in itertools.count():
            await asyncio.sleep(_POLL_S)
            if poll % _POLLS_PER_ROTATION == 0:
                for engine in self._engines:
                    await asyncio.to_thread(engine.rotate_log)
            for worker in self.pool.workers:
                if worker.late_s > self._settings.hang_s:
                    self._end(worker)

    def _end(self, worker: RemoteWorker) -> None:
        """Ends a worker that hangs: asks its engine to replace the process, and closes the gateway's connection."""
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
                load_records.forget(self.pool.path)
                await self._in_thread(engine.start)
                await self._answered(engine)
            except Exception as failure:  # an unforeseen one, such as a full disk, may be over at the next try
                why = failure.message if isinstance(failure, CutawayError) else f"{type(failure).__name__}: {failure}"
                log.warning(f"{engine.name} did not start: {why.splitlines()[0]}")
            else:
                break

    async def _answered(self, engine: Engine) -> None:
        """Waits until the models of an engine that was started again answer, or cannot; raises if it ends or hangs
        before."""
        names = [*self.answered]
        answering = asyncio.gather(*(self._fault_of(engine, name, restarting=True) for name in names))
        failing = asyncio.ensure_future(self._fault(engine))
        waiting: list[asyncio.Future[Any]] = [answering, failing]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise error(Reason.BACKEND_UNAVAILABLE, failing.result())
            for name, why in zip(names, answering.result()):
                if why:
                    log.warning(f"{name.model} {name.version} does not answer: {why}")
        finally:
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        """Runs ``work`` in a thread; `stop` waits for it even if the caller is cancelled."""
        future = asyncio.ensure_future(asyncio.to_thread(work))
        self._starting.add(future)
        future.add_done_callback(self._starting.discard)
        await asyncio.shield(future)

    async def stop(self, grace_s: float) -> None:
        """Stops all engines; running calls get ``grace_s`` seconds to finish."""
        await self._stop_supervising()
        # A start that was cancelled must end first: only then can its process be stopped.
        if self._starting:
            await asyncio.wait(self._starting)
        await self.pool.drain(grace_s)
        try:
            await asyncio.gather(*(asyncio.to_thread(engine.stop, grace_s) for engine in self._engines))
        finally:
            self.pool.close()
