"""Which workers run, and which of them hang: judged by their heartbeats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from cutaway.results import ModelName
from cutaway.worker_protocol.heartbeat import IDLE, INTERVAL_S, Hello
from cutaway.worker_protocol.socket_directory import ScratchDirectory

_SILENT_S = 2 * INTERVAL_S
"""Without a heartbeat for so long, the worker is stopped, or its model's code does not let other threads run."""


class WatchedWorker(asyncio.Protocol):
    """The gateway's side of one worker's heartbeats.

    Args:
        workers: the workers that run; this one is among them from its first line until its process ends.

    Attributes:
        hello: its process and its model.
    """

    def __init__(self, workers: set[WatchedWorker]) -> None:
        self.hello: Hello
        self._greeted = False
        self._workers = workers
        self._rest = b""
        self._heard = 0.0
        self._until = IDLE
        self._late_s = 0.0
        self._owed: float | None = None

    def data_received(self, data: bytes) -> None:
        """Reads the lines that have arrived."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self._greeted:
                self._until = float(line)
            else:
                self.hello, self._greeted = Hello.decode(line), True
                self._workers.add(self)
        self._heard, self._owed = _now(), None
        self._late_s = 0.0 if self._until == IDLE else _since(self._until)

    def connection_lost(self, failure: Exception | None) -> None:
        """Removes the worker: its process has ended."""
        self._workers.discard(self)

    def late_s(self, latest_deadline: Callable[[ModelName], float]) -> float:
        """Returns for how many seconds the worker has shown no progress although all its calls should be done.

        Args:
            latest_deadline: returns the latest deadline of the calls that were sent to a model, in Unix seconds: a
                silent worker may have begun one of them.
        """
        silent_s = _now() - self._heard
        if silent_s < _SILENT_S:
            return self._late_s
        if _is_stopped(self.hello.pid):
            return silent_s
        if self._owed is None:  # later calls must not put it off
            self._owed = max(self._until, latest_deadline(self.hello.model))
        return min(silent_s, _since(self._owed))


def _now() -> float:
    return asyncio.get_running_loop().time()


def _is_stopped(pid: int) -> bool:
    with suppress(psutil.Error):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


def _since(deadline: float) -> float:
    return max(0.0, time.time() - deadline)


class WorkerWatch:
    """The workers of several TorchServe processes.

    Attributes:
        path: the socket for their heartbeats.
        workers: those that run.
    """

    def __init__(self) -> None:
        self._directory = ScratchDirectory()
        self.path = Path(self._directory.name) / "heartbeats"
        self.workers: set[WatchedWorker] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Starts to listen."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: WatchedWorker(self.workers), self.path)

    def close(self) -> None:
        """Stops listening, and deletes the socket."""
        if self._server is not None:
            self._server.close()
        self._directory.cleanup()
