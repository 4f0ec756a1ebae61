"""Workers without TorchServe and Java: a small process starts them, and a new one for each that ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from cutaway.archive import reader
from cutaway.gateway.processes.environment import WorkerEnvironment
from cutaway.gateway.processes.keeper_process import KeeperProcess
from cutaway.gateway.processes.process_group import ProcessGroup
from cutaway.results import ModelName

LOG_NAME = "workers.log"


class WorkerProcesses(KeeperProcess):
    """A keeper and the workers that it starts.

    Args:
        archives: the models.
        environment: of the workers.
        workers: number of workers of each model, or None for the archives' own.
        log_dir: the directory of `LOG_NAME`.
    """

    name = "the process that starts workers"

    def __init__(
        self, archives: Mapping[ModelName, Path], environment: WorkerEnvironment, *, workers: int | None, log_dir: Path
    ) -> None:
        super().__init__(log_dir / LOG_NAME)
        self._archives = dict(archives)
        self._workers_environment = environment
        self._workers = workers

    def _keeper(self, directory: Path) -> tuple[str, str]:
        places = [self._place(name, path, directory / path.stem) for name, path in self._archives.items()]
        return "cutaway.worker.keeper", json.dumps(places)

    def _place(self, name: ModelName, path: Path, directory: Path) -> tuple[str, str, str, int]:
        reader.unpack(path, directory)
        return str(directory), name.model, name.version, self._workers or reader.workers(path)

    def _environment(self) -> WorkerEnvironment:
        return self._workers_environment

    def _end(self, group: ProcessGroup) -> None:
        group.kill()

    def has_worker(self, pid: int) -> bool:
        """Returns whether ``pid`` is one of these processes."""
        return self._group is not None and self._group.has(pid)

    def end_worker(self, pid: int) -> None:
        """Kills one of these processes."""
        if self._group is not None:
            self._group.kill_one(pid)
