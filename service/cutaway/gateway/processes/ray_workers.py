"""Workers on a Ray cluster: a process of this machine has Ray Serve start them, and passes calls on to them."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from cutaway.archive import reader
from cutaway.config.settings import Settings
from cutaway.errors import Reason, error
from cutaway.gateway.processes.environment import WorkerEnvironment
from cutaway.gateway.processes.process_group import ProcessGroup
from cutaway.gateway.processes.run_log import RunLog
from cutaway.gateway.processes.worker_processes import Running
from cutaway.results import ModelName
from cutaway.worker.ray.plan import Plan, PlannedModel
from cutaway.worker_protocol.socket_directory import ScratchDirectory

LOG_NAME = "ray.log"

_KEEPER = "cutaway.worker.ray.keeper"
"""Run as a module, not imported: it imports Ray."""

_DELETE_S = 10.0
"""What the keeper gets to end the workers."""


class RayWorkers:
    """The keeper of the workers on a cluster; a cluster that it starts itself ends with it.

    Args:
        archives: the models.
        settings: the cluster, and what a worker is.
        sockets: where the gateway looks for workers.
        workers: the smallest number of workers of each model, or None for the archives' own.
    """

    name = "the process that starts workers on Ray"

    def __init__(
        self, archives: Mapping[ModelName, Path], settings: Settings, sockets: Path, *, workers: int | None
    ) -> None:
        self._archives = dict(archives)
        self._settings = settings
        self._sockets = sockets
        self._workers = workers
        self._run = f"cutaway-{secrets.token_hex(4)}"
        self._log = RunLog()
        self._group: ProcessGroup | None = None
        self._cleanup = ExitStack()

    def start(self) -> None:
        """Starts the keeper; the workers load their models after that."""
        with ExitStack() as undo:
            directory = Path(undo.enter_context(ScratchDirectory()))
            self._log = RunLog(self._settings.log_dir / LOG_NAME)
            undo.callback(self._log.close)
            command = [sys.executable, "-m", _KEEPER, self._plan().encode()]
            settings = self._settings
            environment = WorkerEnvironment(settings.max_message_bytes, None, settings.request_memory_bytes)
            with self._log.path.open("ab") as output:
                self._group = ProcessGroup(command, directory, environment.variables(), output)
            undo.callback(self._group.kill)
            self._cleanup = undo.pop_all()

    def _plan(self) -> Plan:
        settings = self._settings
        return Plan(
            run=self._run,
            models=tuple(self._planned(name, path) for name, path in self._archives.items()),
            sockets=str(self._sockets),
            address=settings.ray_address,
            cpus=settings.ray_cpus,
            gpus=settings.ray_gpus,
            calls_per_worker=settings.ray_calls_per_worker,
            downscale_delay_s=settings.ray_downscale_delay_s,
            hang_s=settings.hang_s,
            grace_s=settings.grace_s,
        )

    def _planned(self, name: ModelName, path: Path) -> PlannedModel:
        least = self._workers or reader.workers(path)
        return PlannedModel(name, os.path.abspath(path), least, max(least, self._settings.ray_max_workers or 0))

    def poll(self) -> int | None:
        """Returns None while the keeper runs, else its exit status."""
        if self._group is None:
            raise error(Reason.INTERNAL, "the workers were not started")
        return self._group.poll()

    def has_worker(self, pid: int) -> bool:
        """Returns whether ``pid`` is that of a worker on the cluster."""
        return pid == 0

    def end_worker(self, pid: int) -> None:
        """Does nothing: Ray Serve finds by itself that a worker hangs (`worker.ray.replica.Replica.check_health`)."""

    def log_tail(self) -> str:
        """Returns the end of the log since the last start; also after the keeper has ended."""
        return self._log.tail()

    def liveness(self, hang_s: float) -> Running:
        """Returns whether the keeper passes on calls."""
        return Running(self._group.pid if self._group else 0)

    def stop(self, grace_s: float) -> None:
        """Ends all workers, and deletes their files."""
        with self._cleanup:
            if self._group is not None:
                self._group.terminate(_DELETE_S)
