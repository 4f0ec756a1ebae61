"""A replica set: TorchServe processes over one model store, each restarted when it ends unexpectedly or hangs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import chain, repeat

import structlog

from cutaway.archive import reader
from cutaway.config.memory import share_of_worker
from cutaway.config.settings import Settings
from cutaway.errors import CutawayError
from cutaway.gateway.backends.replica_pool import ReplicaPool
from cutaway.gateway.backends.torchserve import TorchServeBackend
from cutaway.gateway.lifecycle.readiness import unready_models
from cutaway.gateway.lifecycle.worker_watch import WorkerWatch
from cutaway.gateway.models.store import ModelStore
from cutaway.gateway.torchserve.server_process import Endpoint, TorchServe
from cutaway.results import ModelName
from cutaway.worker_protocol.heartbeat import Hello

log = structlog.get_logger(__name__)

_POLL_S = 0.1
_RESTART_DELAYS_S = (0.0, 1.0, 2.0, 5.0, 10.0)
"""Delays before the attempts of a restart. After the last one fails, and if no other replica is available, there are no
further attempts: the process manager of the gateway should decide."""


class ReplicaSet:
    """As many TorchServe processes over a model store as the settings say.

    Args:
        store: the models.
        settings: number of processes, limits and timeouts.
        workers: number of workers of each model in each process; None for the archives' own.
    """

    def __init__(self, store: ModelStore, settings: Settings, workers: int | None) -> None:
        self.store = store
        self._settings = settings
        self._watch = WorkerWatch()
        self._servers = {self._name(number): self._server(workers, number) for number in range(settings.replicas)}
        self._supervision: asyncio.Future[list[None]] = asyncio.get_running_loop().create_future()
        self._ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starting: set[asyncio.Future[None]] = set()

    def _name(self, number: int) -> str:
        return "TorchServe" if self._settings.replicas == 1 else f"TorchServe {number + 1}"

    def _server(self, workers: int | None, number: int) -> TorchServe:
        archives = list(self.store.archives.values())
        return TorchServe(
            archives[0].parent,
            [path.name for path in archives],
            workers=workers,
            batch=1,  # the gateway makes the batches, without delaying any call
            max_message_bytes=self._settings.max_message_bytes,
            log_dir=self._settings.log_dir,
            number=number,
            of=self._settings.replicas,
            heartbeats=self._watch.path,
            request_memory_bytes=self._settings.request_memory_bytes or share_of_worker(self._workers(workers)),
            start_timeout_s=self._settings.start_timeout_s,
        )

    def _workers(self, each: int | None) -> int:
        """Returns the number of workers in all processes."""
        return self._settings.replicas * sum(each or reader.workers(path) for path in self.store.archives.values())

    @property
    def endpoints(self) -> list[Endpoint]:
        """The gRPC address of each TorchServe process."""
        return [server.inference for server in self._servers.values()]

    async def start(self) -> None:
        """Starts the processes, and waits until each model has answered in each of them; marks others as broken.

        Raises:
            CutawayError: a process does not start, or no model answers.
        """
        await self._watch.open()
        unready = await asyncio.gather(*map(self._start, self._servers.values()))
        for name, why in {name: why for models in unready for name, why in models.items()}.items():
            log.warning(self.store.mark_broken(name, why))
        self.store.require_models()

    async def _start(self, server: TorchServe) -> dict[ModelName, str]:
        await self._in_thread(server.start)
        return await unready_models(server, self.store, self._settings)

    def supervise(self, backend: TorchServeBackend) -> None:
        """From now on, kills workers that hang (TorchServe starts new ones); removes a process that ends or hangs from
        the replicas of ``backend``, restarts it, and adds it again."""
        servers, pool = self._servers.items(), backend.replicas
        self._supervision = asyncio.gather(*(self._supervise(name, server, pool) for name, server in servers))
        self._ending = asyncio.ensure_future(self._end_hanging_workers(backend))

    def stop_supervising(self) -> None:
        """From now on, kills and restarts nothing."""
        self._supervision.cancel()
        self._ending.cancel()

    def serving(self, backend: TorchServeBackend) -> set[ModelName]:
        """Returns the models that have a worker that does not hang, in a process that replies."""
        replicas = [(server, backend.replicas.find(server.inference)) for server in self._servers.values()]
        replying = [server for server, replica in replicas if replica and replica.available]
        return {
            worker.hello.model
            for worker in self._watch.workers
            if worker.late_s(backend.latest_deadline) < self._settings.hang_s / 2
            and any(server.has_worker(worker.hello.pid) for server in replying)
        }

    async def _end_hanging_workers(self, backend: TorchServeBackend) -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            for worker in [*self._watch.workers]:
                if worker.late_s(backend.latest_deadline) > self._settings.hang_s:
                    self._watch.workers.discard(worker)
                    self._end(worker.hello)

    def _end(self, worker: Hello) -> None:
        if any(server.has_worker(worker.pid) for server in self._servers.values()):
            log.warning(f"a worker of {worker.model.model} {worker.model.version} hangs; starting a new one")
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)

    @property
    def failed(self) -> bool:
        """Whether no process runs, or can be restarted."""
        return self._supervision.done()

    async def _supervise(self, name: str, server: TorchServe, pool: ReplicaPool) -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            replica = pool.find(server.inference)
            hangs = replica is not None and replica.hangs
            if server.poll() is None and not hangs:
                continue
            what = "replies to nothing" if hangs else "ended unexpectedly; its log says why"
            log.warning(f"{name} {what}; restarting it")
            await pool.remove(server.inference)
            if not await self._restart(name, server, pool):
                return
            pool.add(server.inference)
            log.info(f"{name} is available again")

    async def _restart(self, name: str, server: TorchServe, pool: ReplicaPool) -> bool:
        """Returns whether a restart succeeded."""
        for attempt, delay_s in enumerate(chain(_RESTART_DELAYS_S, repeat(_RESTART_DELAYS_S[-1])), 1):
            await asyncio.sleep(delay_s)
            try:
                await self._in_thread(partial(server.stop, 0.0))
                await self._start(server)
            except Exception as failure:  # also what nobody foresaw, such as a full disk, may be over at the next try
                why = failure.message if isinstance(failure, CutawayError) else f"{type(failure).__name__}: {failure}"
                log.warning(f"{name} did not start: {why.splitlines()[0]}")
                if attempt >= len(_RESTART_DELAYS_S) and not pool.available:
                    return False
            else:
                break
        return True

    async def _in_thread(self, work: Callable[[], None]) -> None:
        """Runs ``work`` in a thread; `stop` waits for it even if the caller is cancelled."""
        future = asyncio.ensure_future(asyncio.to_thread(work))
        self._starting.add(future)
        future.add_done_callback(self._starting.discard)
        await asyncio.shield(future)

    async def stop(self, grace_s: float) -> None:
        """Stops all processes; running calls get ``grace_s`` seconds to finish."""
        self.stop_supervising()
        # A start that was cancelled must end first: only then can its process be stopped.
        if self._starting:
            await asyncio.wait(self._starting)
        await asyncio.gather(*(asyncio.to_thread(server.stop, grace_s) for server in self._servers.values()))
        self._watch.close()
