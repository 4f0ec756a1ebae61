"""Workers without TorchServe and Java: a keeper starts them, and a new one for every worker that ends."""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import psutil

from cutaway.contract.results import ModelName
from cutaway.server.archive import reader
from cutaway.server.processes.environment import WorkerEnvironment
from cutaway.server.processes.process_group import EngineProcesses, ProcessGroup, RunLog
from cutaway.server.worker_protocol import ScratchDirectory


class KeeperProcess(EngineProcesses, ABC):
    """A keeper and its log: the base of engines without TorchServe.

    A keeper is a process that starts workers, and new ones for those that end.

    Args:
        log_path: the log of the keeper and of its workers.
    """

    def __init__(self, log_path: Path) -> None:
        super().__init__()
        self._log_path = log_path

    def start(self) -> None:
        """Starts the keeper; its workers load their models after that."""
        with ExitStack() as undo:
            directory = Path(undo.enter_context(ScratchDirectory()))
            self._log = RunLog(self._log_path)
            undo.callback(self._log.close)
            module, plan = self._keeper(directory)
            with self._log.path.open("ab") as output:
                # Run as a module, not imported: it imports torch, or Ray.
                command = [sys.executable, "-m", module, plan]
                self._group = ProcessGroup(command, directory, self._environment().variables(), output)
            undo.callback(self._group.kill)
            self._cleanup = undo.pop_all()

    @abstractmethod
    def _keeper(self, directory: Path) -> tuple[str, str]:
        """Returns the keeper's module and its argument; ``directory`` is for its files."""

    @abstractmethod
    def _environment(self) -> WorkerEnvironment:
        """Returns the environment of the keeper."""

    @abstractmethod
    def _end(self, group: ProcessGroup) -> None:
        """Ends the keeper and its workers."""

    def liveness(self, hang_s: float) -> Running:
        """Returns a watch over the keeper."""
        return Running(self._group.pid if self._group else 0)

    def stop(self, grace_s: float) -> None:
        """Ends all workers, and deletes their files."""
        with self._cleanup:
            if self._group is not None:
                self._end(self._group)


class Running:
    """A watch over a keeper, which takes no calls: it hangs if it is stopped (SIGSTOP)."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)

    @property
    def hangs(self) -> bool:
        """Whether the process is stopped."""
        try:
            return bool(self._process.status() == psutil.STATUS_STOPPED)
        except psutil.NoSuchProcess:
            return False

    async def close(self) -> None:
        """Does nothing."""


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
        models = [self._model(name, path, directory / path.stem) for name, path in self._archives.items()]
        return "cutaway.server.worker.keeper", json.dumps(models)

    def _model(self, name: ModelName, path: Path, directory: Path) -> tuple[str, str, str, int]:
        reader.unpack(path, directory)
        return str(directory), name.model, name.version, self._workers or reader.workers(path)

    def _environment(self) -> WorkerEnvironment:
        return self._workers_environment

    def _end(self, group: ProcessGroup) -> None:
        group.kill()
