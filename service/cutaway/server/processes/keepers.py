"""Keepers, as forks of one process that has imported what workers need."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from cutaway.contract.errors import Reason, error
from cutaway.server.processes.process_group import IGNORING, Leader
from cutaway.server.silence import is_stopped
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
                with suppress(OSError, ValueError, psutil.NoSuchProcess):
                    return Fork(int(self._answer(order)))
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
