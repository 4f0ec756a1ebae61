"""A server process and everything it starts, owned to the end: a process group with a watchdog."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

from cutaway.errors import Reason, error

_WATCHDOG = Path(__file__).with_name("watchdog.py")
_KILL_TIMEOUT_S = 30.0


class ProcessGroup:
    """A command that runs in a process group of its own.

    Whatever it starts belongs to the group too, and is ended with it: also when the command itself was killed,
    and also, by the watchdog, when the process that owns this object was.

    Args:
        command: the program and its arguments.
        directory: its working directory; the watchdog deletes it.
        environment: its environment variables.
        output: the file that takes its standard output and standard error.
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
            start_new_session=True,  # Ctrl-C in the terminal then reaches only the owner, who ends things in order
        )
        self.pid = self._leader.pid
        self._gone = False
        try:
            self._watchdog = _watch(self.pid, directory)
        except BaseException:
            self._leader.kill()
            raise

    def poll(self) -> int | None:
        """None while the command runs, else its exit status; what it left behind is then ended."""
        status = self._leader.poll()
        if status is not None:
            self.kill()
        return status

    def terminate(self, grace_s: float) -> None:
        """Ask the command to end and give it ``grace_s`` to do so; then kill what is left."""
        if self._leader.poll() is None:
            self._leader.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._leader.wait(grace_s)
        self.kill()

    def kill(self) -> None:
        """Kill every process of the group and wait until none is left."""
        if self._gone:  # its number may be another group's by now
            return
        deadline = time.monotonic() + _KILL_TIMEOUT_S
        while left := list(self._members()):
            if time.monotonic() > deadline:
                raise error(Reason.INTERNAL, f"processes {left} of group {self.pid} cannot be killed")
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            time.sleep(0.02)
        self._leader.wait()
        self._gone = True
        self._dismiss_watchdog()

    def _members(self) -> Iterator[int]:
        for process in psutil.process_iter():
            # A process may end while it is looked at. Zombies are dead; who reaps them is not our business.
            with suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
                if os.getpgid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE:
                    yield process.pid

    def _dismiss_watchdog(self) -> None:
        self._watchdog.kill()  # first, lest it takes the closing of its pipe for our death
        self._watchdog.communicate()


def _watch(group: int, directory: Path) -> subprocess.Popen[bytes]:
    """Start the watchdog. Isolated and without site-packages, it is small and starts quickly."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_WATCHDOG), str(group), str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
