"""The processes of an engine as one process group, with a watchdog and a log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

import psutil

from cutaway.contract.errors import Reason, error

_TAIL_BYTES = 16 << 10


class RunLog:
    """The part of a log file that one run of a program writes.

    Attributes:
        path: the file; its directory is created.
    """

    def __init__(self, path: Path = Path(os.devnull)) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path.resolve()
        with path.open("ab") as log:
            self._begin = log.tell()
        self._closed_tail: str | None = None

    def tail(self) -> str:
        """Returns the end of the part."""
        if self._closed_tail is not None:
            return self._closed_tail
        with self.path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            begin = self._begin if self._begin <= size else 0  # else it was rotated
            log.seek(max(begin, size - _TAIL_BYTES))
            return log.read().decode(errors="replace")

    def close(self) -> None:
        """Stores the tail in memory: the file may then be deleted."""
        self._closed_tail = self.tail()


_WATCHDOG = Path(__file__).with_name("watchdog.py")
_KILL_TIMEOUT_S = 30.0


class ProcessGroup:
    """A command that runs in its own process group.

    All processes that the command starts belong to the group, and end with it, also if the command was killed. If the
    process that owns this object is killed, the watchdog ends them.

    Args:
        command: the program and its arguments.
        directory: its working directory; the watchdog deletes it.
        environment: its environment variables.
        output: the file for its standard output and standard error.
    """

    def __init__(
        self, command: Sequence[str], directory: Path, environment: Mapping[str, str], output: IO[bytes]
    ) -> None:
        self._leader = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the terminal then reaches only the owner, which stops it in order
        )
        self.pid = self._leader.pid
        self._gone = False
        try:
            self._watchdog = _watch(self.pid, directory)
        except BaseException:
            self._leader.kill()
            raise

    def poll(self) -> int | None:
        """Returns None while the command runs, else its exit status; kills the remaining processes of the group."""
        status = self._leader.poll()
        if status is not None:
            self.kill()
        return status

    def has(self, pid: int) -> bool:
        """Returns whether a process belongs to the group."""
        with suppress(ProcessLookupError):
            return os.getpgid(pid) == self.pid and not self._gone
        return False

    def kill_one(self, pid: int) -> None:
        """Kills one process, if it belongs to the group."""
        if self.has(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def terminate(self, grace_s: float) -> None:
        """Sends SIGTERM to the command, waits up to ``grace_s`` seconds, then kills the group."""
        if self._leader.poll() is None:
            self._leader.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._leader.wait(grace_s)
        self.kill()

    def kill(self) -> None:
        """Kills every process of the group, and waits until none is left."""
        if self._gone:  # the id may belong to another group by now
            return
        deadline = time.monotonic() + _KILL_TIMEOUT_S
        while members := list(self._members()):
            if time.monotonic() > deadline:
                raise error(Reason.INTERNAL, f"processes {members} of group {self.pid} cannot be killed")
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            time.sleep(0.02)
        self._leader.wait()
        self._gone = True
        self._watchdog.kill()  # first: it takes the end of its pipe for the end of this process
        self._watchdog.communicate()

    def _members(self) -> Iterator[int]:
        for process in psutil.process_iter():
            # A process may end during the check. Zombies are dead; another process reaps them.
            with suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
                if os.getpgid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE:
                    yield process.pid


class EngineProcesses:
    """The processes of an engine: a process group, whose members are its workers too, and the log of the last start."""

    def __init__(self) -> None:
        self._log = RunLog()
        self._group: ProcessGroup | None = None
        self._cleanup = ExitStack()

    def poll(self) -> int | None:
        """Returns None while the processes run, else the exit status of the first."""
        if self._group is None:
            raise error(Reason.INTERNAL, "the processes were not started")
        return self._group.poll()

    def has_worker(self, pid: int) -> bool:
        """Returns whether ``pid`` is one of these processes."""
        return self._group is not None and self._group.has(pid)

    def end_worker(self, pid: int) -> None:
        """Kills one of these processes."""
        if self._group is not None:
            self._group.kill_one(pid)

    def log_tail(self) -> str:
        """Returns the end of the log since the last start; also after the processes have ended."""
        return self._log.tail()


def _watch(group: int, directory: Path) -> subprocess.Popen[bytes]:
    """Starts the watchdog; isolated and without site-packages, it is small and starts quickly."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_WATCHDOG), str(group), str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
