"""A process that starts workers, and new ones for those that end: what engines without TorchServe have in common."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path

import psutil

from cutaway.errors import Reason, error
from cutaway.gateway.processes.environment import WorkerEnvironment
from cutaway.gateway.processes.process_group import ProcessGroup
from cutaway.gateway.processes.run_log import RunLog
from cutaway.worker_protocol.socket_directory import ScratchDirectory


class KeeperProcess(ABC):
    """A keeper, and its log.

    Args:
        log_path: the log of it and of its workers.
    """

    def __init__(self, log_path: Path) -> None:
        self._log_path = log_path
        self._log = RunLog()
        self._group: ProcessGroup | None = None
        self._cleanup = ExitStack()

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

    def poll(self) -> int | None:
        """Returns None while the keeper runs, else its exit status."""
        if self._group is None:
            raise error(Reason.INTERNAL, "the workers were not started")
        return self._group.poll()

    def log_tail(self) -> str:
        """Returns the end of the log since the last start; also after the keeper has ended."""
        return self._log.tail()

    def liveness(self, hang_s: float) -> Running:
        """Returns whether the keeper can do its work."""
        return Running(self._group.pid if self._group else 0)

    def stop(self, grace_s: float) -> None:
        """Ends all workers, and deletes their files."""
        with self._cleanup:
            if self._group is not None:
                self._end(self._group)


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
