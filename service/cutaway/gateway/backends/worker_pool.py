"""The workers that listen in one directory: found when they begin to listen, forgotten when they end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from cutaway.gateway.backends.remote_worker import RemoteWorker
from cutaway.results import ModelName
from cutaway.worker_protocol.socket_directory import ScratchDirectory

_POLL_S = 0.05


class WorkerPool:
    """The workers of one set of processes.

    Attributes:
        path: the directory in which they listen.
        available: whether processes run that start workers; if not, calls do not wait for one.
        sends_ahead: always; the way to a worker takes time.
        changed: called when workers, or `available`, have changed.
        news: set at the same moment.
    """

    def __init__(self) -> None:
        self._directory = ScratchDirectory()
        self.path = Path(self._directory.name)
        self.available = True
        self.sends_ahead = True
        self.changed: Callable[[], None] = lambda: None
        self.news = asyncio.Event()
        self._found: dict[Path, RemoteWorker] = {}
        self._search: asyncio.Future[None] | None = None

    @property
    def workers(self) -> list[RemoteWorker]:
        """All workers."""
        return [worker for worker in self._found.values() if worker.is_open]

    def of(self, name: ModelName) -> Sequence[RemoteWorker]:
        """Returns the workers of a model that take turns."""
        return [worker for worker in self.workers if worker.name == name and worker.takes_turns]

    def set_available(self, available: bool) -> None:
        """Sets whether processes run that start workers."""
        if available != self.available:
            self.available = available
            self._tell()

    def open(self) -> None:
        """Begins to look for workers."""
        self._search = asyncio.ensure_future(self._find())

    async def drain(self, grace_s: float) -> None:
        """Waits until no worker has calls, or streamed replies that are being read; ``grace_s`` seconds at most."""
        for _ in range(round(grace_s / _POLL_S)):
            if not any(worker.is_busy for worker in self.workers):
                break
            await asyncio.sleep(_POLL_S)

    def close(self) -> None:
        """Closes all connections, and deletes the directory."""
        if self._search is not None:
            self._search.cancel()
        for worker in self.workers:
            worker.close()
        self._directory.cleanup()

    async def _find(self) -> None:
        while True:
            with suppress(OSError):  # no file descriptor is left: tried again
                for path in self.path.iterdir():
                    if path.name.isdigit() and path not in self._found:
                        await self._connect(path)
            await asyncio.sleep(_POLL_S)

    async def _connect(self, path: Path) -> None:
        def changed() -> None:
            if not worker.is_open:
                self._found.pop(path, None)
                path.unlink(missing_ok=True)
            self._tell()

        worker = self._found[path] = RemoteWorker(path, changed)  # it may answer before the connection is returned
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: worker, str(path))
        except OSError as failure:
            del self._found[path]
            if isinstance(failure, ConnectionError):  # its process has ended
                os.unlink(path)

    def _tell(self) -> None:
        self.news.set()
        self.changed()
