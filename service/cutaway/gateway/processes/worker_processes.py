"""Workers without TorchServe and Java: a small process starts them, and a new one for each that ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import psutil

from cutaway.archive import reader
from cutaway.errors import Reason, error
from cutaway.gateway.processes.environment import WorkerEnvironment
from cutaway.gateway.processes.process_group import ProcessGroup
from cutaway.gateway.processes.run_log import RunLog
from cutaway.results import ModelName
from cutaway.worker_protocol.socket_directory import ScratchDirectory

LOG_NAME = "workers.log"

_KEEPER = "cutaway.worker.keeper"
"""Run as a module, not imported: it imports torch."""


class WorkerProcesses:
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
        self._archives = dict(archives)
        self._environment = environment
        self._workers = workers
        self._log_path = log_dir / LOG_NAME
        self._log = RunLog()
        self._group: ProcessGroup | None = None
        self._cleanup = ExitStack()

    def start(self) -> None:
        """Unpacks the archives and starts the keeper; its workers load their models after that."""
        with ExitStack() as undo:
            directory = Path(undo.enter_context(ScratchDirectory()))
            self._log = RunLog(self._log_path)
            undo.callback(self._log.close)
            places = [self._place(name, path, directory / path.stem) for name, path in self._archives.items()]
            command = [sys.executable, "-m", _KEEPER, json.dumps(places)]
            with self._log.path.open("ab") as output:
                self._group = ProcessGroup(command, directory, self._environment.variables(), output)
            undo.callback(self._group.kill)
            self._cleanup = undo.pop_all()

    def _place(self, name: ModelName, path: Path, directory: Path) -> tuple[str, str, str, int]:
        reader.unpack(path, directory)
        return str(directory), name.model, name.version, self._workers or reader.workers(path)

    def poll(self) -> int | None:
        """Returns None while the keeper runs, else its exit status."""
        if self._group is None:
            raise error(Reason.INTERNAL, "the workers were not started")
        return self._group.poll()

    def has_worker(self, pid: int) -> bool:
        """Returns whether ``pid`` is one of these processes."""
        return self._group is not None and self._group.has(pid)

    def end_worker(self, pid: int) -> None:
        """Kills one of these processes."""
        if self._group is not None:
            self._group.kill_one(pid)

    def log_tail(self) -> str:
        """Returns the end of the log since the last start; also after the keeper has ended."""
        return self._log.tail()

    def liveness(self, hang_s: float) -> Running:
        """Returns whether the keeper can start workers."""
        return Running(self._group.pid if self._group else 0)

    def stop(self, grace_s: float) -> None:
        """Ends all processes, and deletes their files."""
        with self._cleanup:
            if self._group is not None:
                self._group.kill()


class Running:
    """Whether a process, which takes no calls, is stopped (SIGSTOP)."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)

    @property
    def hangs(self) -> bool:
        """Whether it is stopped."""
        try:
            return bool(self._process.status() == psutil.STATUS_STOPPED)
        except psutil.NoSuchProcess:
            return False

    async def close(self) -> None:
        """Does nothing."""
