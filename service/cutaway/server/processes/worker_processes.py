"""Workers without TorchServe and Java: a keeper starts them, and a new one for every worker that ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import ClassVar

from cutaway.contract.results import ModelName
from cutaway.server.processes.environment import WorkerEnvironment
from cutaway.server.processes.keepers import Keepers
from cutaway.server.processes.process_group import Engine, Leader, ProcessGroup
from cutaway.server.silence import is_stopped
from cutaway.server.unpacked import Unpacked
from cutaway.server.worker_protocol import KeeperOrder


@dataclass(eq=False)
class Kept(Engine):
    """A keeper, which is a process that starts workers, and new ones for those that end.

    Args:
        archives: the models.
        environment: of the keeper and the workers.
        log_dir: the directory of the log.
    """

    archives: Mapping[ModelName, Unpacked]
    environment: WorkerEnvironment
    _: KW_ONLY
    log_dir: Path

    log_name: ClassVar[str]
    end_s: ClassVar = 0.0
    """Seconds that the keeper gets to end by itself."""

    def _log_path(self, directory: Path) -> Path:
        return self.log_dir / self.log_name

    def _wait_started(self, group: ProcessGroup, directory: Path) -> None:
        """Does nothing: whoever waits for a worker waits for the keeper too."""

    def liveness(self, hang_s: float) -> Running:
        """Returns a watch over the keeper."""
        return Running(self.pid)

    def stop(self, grace_s: float = 0.0) -> None:
        """Ends all workers, and deletes their files: they have no calls any more."""
        super().stop(self.end_s)


@dataclass(eq=False)
class WorkerProcesses(Kept):
    """A keeper on this machine, whose workers are its forks.

    Args:
        first: the number of the first worker among all workers of the server.
        keepers: starts it.
    """

    _: KW_ONLY
    first: int
    keepers: Keepers

    name = "the process that starts workers"
    log_name: ClassVar = "workers.log"

    def _launch(self, directory: Path) -> Leader:
        models = [(str(each.directory), name.model, name.version, each.workers) for name, each in self.archives.items()]
        variables = self.environment.variables()
        order = KeeperOrder(models, self.first, str(directory), str(self._log.path), variables)
        return self.keepers.start(order, self.log_tail)


class Running:
    """A watch over a keeper, which takes no calls: it hangs if it is stopped (SIGSTOP)."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    @property
    def hangs(self) -> bool:
        """Whether the process is stopped."""
        return is_stopped(self._pid)

    async def close(self) -> None:
        """Does nothing."""
