"""Workers on a Ray cluster: a keeper on this machine has Ray Serve start them, and passes calls on to them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from cutaway.contract.results import ModelName
from cutaway.server.archive import reader
from cutaway.server.processes.environment import WorkerEnvironment
from cutaway.server.processes.process_group import ProcessGroup
from cutaway.server.processes.worker_processes import KeeperProcess
from cutaway.server.ray.plan import PlannedModel, RayPlan
from cutaway.server.settings import Settings

LOG_NAME = "ray.log"

_DELETE_S = 10.0
"""Seconds that the keeper gets to end the workers."""


class RayWorkers(KeeperProcess):
    """The keeper of the workers on a cluster; a cluster that it starts itself ends with it.

    Args:
        archives: the models.
        settings: the cluster, and the CPUs and GPUs of a worker.
        sockets: the directory in which the gateway looks for workers.
        workers: the smallest number of workers of each model, or None for the archives' own.
    """

    name = "the process that starts workers on Ray"

    def __init__(
        self, archives: Mapping[ModelName, Path], settings: Settings, sockets: Path, *, workers: int | None
    ) -> None:
        super().__init__(settings.log_dir / LOG_NAME)
        self._archives = dict(archives)
        self._settings = settings
        self._sockets = sockets
        self._workers = workers
        self._run = f"cutaway-{secrets.token_hex(4)}"

    def _keeper(self, directory: Path) -> tuple[str, str]:
        return "cutaway.server.ray.keeper", self._plan().encode()

    def _environment(self) -> WorkerEnvironment:
        return WorkerEnvironment(self._settings.max_message_bytes, None, self._settings.request_memory_bytes)

    def _end(self, group: ProcessGroup) -> None:
        group.terminate(_DELETE_S)

    def _plan(self) -> RayPlan:
        settings = self._settings
        return RayPlan(
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

    def has_worker(self, pid: int) -> bool:
        """Returns whether ``pid`` is that of a worker on the cluster."""
        return pid == 0

    def end_worker(self, pid: int) -> None:
        """Does nothing: Ray Serve finds by itself that a worker hangs (`Replica.check_health`)."""
