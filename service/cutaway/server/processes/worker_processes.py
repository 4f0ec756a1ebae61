"""Workers without TorchServe and Java: a keeper starts them, and a new one for every worker that ends.

Keepers are forks of one process that has imported what workers need (`cutaway.server.worker.keeper`).
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import ClassVar

import psutil

from cutaway.contract.errors import Reason, error
from cutaway.contract.results import ModelName
from cutaway.server.child_processes import is_stopped
from cutaway.server.model_store import Unpacked
from cutaway.server.processes.environment import WorkerEnvironment
from cutaway.server.processes.process_group import IGNORING, Engine, Leader, ProcessGroup
from cutaway.server.worker_protocol import KeeperOrder, ScratchDirectory

_MODULE = "cutaway.server.worker.keeper"
_PATIENCE_S = 300.0
"""How long a machine may take to import what workers need."""

_POLL_S = 0.1

_LONGEST_REPLY = 32


class Fork(Leader):
    """A process that is no child of this one, and whose exit status is not known."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._process = psutil.Process(pid)

    def poll(self) -> int | None:
        """Returns None while it runs, else 1."""
        with suppress(psutil.NoSuchProcess):
            if self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE:
                return None
        return 1

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it has ended; raises `subprocess.TimeoutExpired` after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(_MODULE, timeout or 0.0)
            time.sleep(_POLL_S / 10)
        return status

    def send_signal(self, sig: int) -> None:
        """Sends it a signal, if it runs."""
        with suppress(psutil.NoSuchProcess):
            self._process.send_signal(sig)


def _fork(pid: int) -> Fork:
    """Returns an object for the keeper that runs as ``pid``; kills the keeper's process group if that fails."""
    try:
        return Fork(pid)
    except BaseException:  # no file descriptor is left to look with
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        raise


class Keepers:
    """The process whose forks are keepers: it starts with the first of them, and again if it has ended or hangs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._scratch = ScratchDirectory()
        self._running: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._is_closed = False

    def start(self, order: KeeperOrder, log_tail: Callable[[], str]) -> Fork:
        """Starts a keeper, which leads a process group of its own; blocks while the imports run.

        Raises:
            CutawayError: ``BACKEND_UNAVAILABLE``, with ``log_tail()``.
        """
        with self._lock:
            for _ in range(2 if self._running else 1):
                with suppress(OSError, ValueError, psutil.Error):
                    return _fork(int(self._answer(order)))
                self._end()
        raise error(Reason.BACKEND_UNAVAILABLE, f"no process can start workers:\n{log_tail()}")

    def refuse(self) -> None:
        """Lets every start fail from now on, and one that is under way at once."""
        self._is_closed = True
        if self._running is not None and self._lock.locked():
            self._running[0].kill()

    def close(self) -> None:
        """Ends the process, when its keepers have ended: nobody else may take note of their end."""
        with self._lock:
            self._end()
        self._scratch.cleanup()

    def _answer(self, order: KeeperOrder) -> bytes:
        """Returns the reply to an order.

        Raises:
            OSError: there is none.
        """
        if self._is_closed:
            raise OSError("closed")
        process, door = self._running = self._running or self._started(order)
        door.sendall(json.dumps(order._asdict()).encode() + b"\n")
        deadline = time.monotonic() + _PATIENCE_S
        while not select.select([door], [], [], _POLL_S)[0]:
            if is_stopped(process.pid) or time.monotonic() > deadline:
                raise OSError("it hangs")
        return door.recv(_LONGEST_REPLY)

    def _started(self, order: KeeperOrder) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, its = socket.socketpair()
        with its, Path(order.log).open("ab") as log:
            command = [*IGNORING, sys.executable, "-m", _MODULE]
            process = subprocess.Popen(
                command,
                cwd=self._scratch.name,
                env=order.variables,
                stdin=its.fileno(),
                stdout=its.fileno(),
                stderr=log,
                start_new_session=True,
            )
        return process, ours

    def _end(self) -> None:
        if self._running is not None:
            process, door = self._running
            self._running = None
            door.close()
            process.kill()
            process.wait()


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
        load_s: the longest that a worker may take to load its model, in seconds.
        keepers: starts it.
    """

    _: KW_ONLY
    first: int
    load_s: float
    keepers: Keepers

    name = "the process that starts workers"
    log_name: ClassVar = "workers.log"

    def _launch(self, directory: Path) -> Leader:
        models = [(str(each.directory), name.model, name.version, each.workers) for name, each in self.archives.items()]
        variables = self.environment.variables()
        order = KeeperOrder(models, self.first, str(directory), str(self._log.path), variables, self.load_s)
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
