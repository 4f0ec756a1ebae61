"""A worker in another process, called over its Unix socket. See `cutaway.server.worker_protocol`."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from cutaway.contract.errors import Reason, error
from cutaway.contract.results import ModelName
from cutaway.server.backends.backend import Answer, Turns, worker_died
from cutaway.server.batching import Answers
from cutaway.server.child_processes import Silence
from cutaway.server.worker_protocol import (
    DEADLINE,
    HEAD,
    HEARTBEAT_INTERVAL_S,
    FrameKind,
    FrameReader,
    ScratchDirectory,
    frame,
)
from cutaway.v1 import worker_pb2

_SILENT_S = 2 * HEARTBEAT_INTERVAL_S
"""Seconds without a heartbeat after which a worker is stopped, or its model's code lets no other thread run."""

_POLL_S = 0.05
_SLACK_S = 0.05  # difference between clocks and timers
_SMALL_BYTES = 64 << 10


class RemoteWorker(asyncio.BufferedProtocol):
    """A worker as the gateway sees it: the gateway's end of a connection for calls.

    Args:
        path: the worker's socket.
        changed: called when the worker has announced its model, and when it has ended.

    Attributes:
        pid: its process; 0 if that may be on another machine.
        name: its model.
        turns: the turns that it has not answered.
        is_open: whether calls can be sent to it.
    """

    def __init__(self, path: Path, changed: Callable[[], None]) -> None:
        self.pid = 0
        self.name = ModelName("", "")
        self.turns = Turns(self)
        self.is_open = False
        self._path = path
        self._changed = changed
        self._transport: asyncio.WriteTransport
        self._reader = FrameReader()
        self._heard = _now()
        self._until = 0.0
        self._late_s = 0.0
        self._silence: Silence | None = None
        self._fetching = 0
        self._fetched_until = 0.0
        self._leaving: asyncio.Future[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether it has calls, or a streamed reply that is being read."""
        return bool(self.turns or self._fetching)

    @property
    def latest_deadline(self) -> float:
        """That of its calls, and of replies that are being read, in Unix seconds; 0 without any."""
        return max(self.turns.latest_deadline, self._fetched_until if self._fetching else 0.0)

    @property
    def may_return(self) -> bool:
        """Whether its process may still listen after a lost connection. A replica of Ray announces itself again."""
        return self.pid != 0 and self.takes_turns

    @property
    def takes_turns(self) -> bool:
        """Whether it accepts further turns; a worker that shall end refuses them."""
        return self._leaving is None

    @property
    def late_s(self) -> float:
        """The seconds without progress since the latest deadline of the worker's calls; 0 for a worker on time.

        Of a silent process that waits for a processor, only the processor time that the process has used counts.
        """
        silent_s = _now() - self._heard
        if silent_s < _SILENT_S:
            return self._late_s
        if self._silence is None:  # later calls must not put it off
            self._silence = Silence(self.pid, max(self._until, self.turns.latest_deadline))
        return self._silence.late_s(silent_s)

    def send(self, calls: Sequence[worker_pb2.WorkerCall], answers: Answers[Answer], waiting: int) -> None:
        """Sends a turn; see `WorkerLink.send`."""
        turn = worker_pb2.WorkerTurn(calls=calls, waiting=waiting, alone=answers.alone).SerializeToString()
        if len(turn) < _SMALL_BYTES:
            self._transport.write(frame(FrameKind.TURN, turn))
        else:  # a frame would be one more copy
            self._transport.write(HEAD.pack(FrameKind.TURN, 0, len(turn)))
            self._transport.write(turn)
        self.turns.add(calls, answers)

    def cancel(self, number: int) -> None:
        """Cancels a call, if this worker has it."""
        if self.is_open:
            self._transport.write(frame(FrameKind.CANCEL, number=number))

    async def pieces(self, number: int, until: float) -> AsyncGenerator[bytes, None]:
        """Yields the messages of a streamed reply; the worker waits when they are not read."""
        loop, reader = asyncio.get_running_loop(), FrameReader()
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        timer = loop.call_later(until - time.time(), _break_off, connection)
        self._fetching, self._fetched_until = self._fetching + 1, max(self._fetched_until, until)
        try:
            await loop.sock_connect(connection, str(self._path))
            await loop.sock_sendall(connection, frame(FrameKind.FETCH, number=number))
            while size := await loop.sock_recv_into(connection, reader.space()):
                for kind, _, content in reader.read(size):
                    if kind == FrameKind.END:
                        return
                    yield bytes(content)
            raise ConnectionError
        except (ConnectionError, FileNotFoundError):
            if time.time() > until - _SLACK_S:
                why = "the deadline passed before the whole reply was sent"
                raise error(Reason.DEADLINE_EXCEEDED, why) from None
            raise worker_died() from None
        finally:
            self._fetching -= 1
            timer.cancel()
            connection.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asks the worker for its model."""
        self._transport = cast(asyncio.WriteTransport, transport)
        self._transport.write(frame(FrameKind.OPEN))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns where the next bytes are received."""
        return self._reader.space()

    def buffer_updated(self, nbytes: int) -> None:
        """Reads the frames that have arrived."""
        self._heard, self._silence = _now(), None
        for kind, number, content in self._reader.read(nbytes):
            if kind == FrameKind.REPLY:
                self.turns.arrived(number, content)
            elif kind == FrameKind.BEGUN:
                self.turns.begun(number, content)
            elif kind == FrameKind.ASIDE:
                self.turns.set_aside(number)
            elif kind == FrameKind.HEARTBEAT:
                (self._until,) = DEADLINE.unpack(content)
                self._late_s = _since(self._until) if self._until else 0.0
            elif kind == FrameKind.HELLO:
                hello = worker_pb2.WorkerHello.FromString(bytes(content))
                self.pid, self.name, self.is_open = hello.pid, ModelName(hello.model, hello.version), True
                self._changed()
            elif kind == FrameKind.LEAVE:
                self._leaving = asyncio.ensure_future(self._close_when_idle())
                self._changed()

    def connection_lost(self, failure: Exception | None) -> None:
        """Fails its calls: the process has ended, or the connection alone."""
        self.is_open = False
        self.turns.lost()
        self._changed()

    def close(self) -> None:
        """Closes the connection, also if the worker reads nothing any more."""
        self._transport.abort()

    async def _close_when_idle(self) -> None:
        """Closes the connection as soon as the worker has no calls left; starts when the worker has asked to leave."""
        while True:
            await asyncio.sleep(_POLL_S)
            if not self.is_busy:
                self.close()
                return


def _break_off(connection: socket.socket) -> None:
    """Ends a connection for a streamed reply at the deadline; `RemoteWorker.pieces` then stops waiting for data."""
    with suppress(OSError):  # not connected yet
        connection.shutdown(socket.SHUT_RDWR)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _since(deadline: float) -> float:
    return max(0.0, time.time() - deadline)


class WorkerPool:
    """The workers that listen in one directory: added when they begin to listen, removed when they end.

    Attributes:
        path: the directory in which they listen.
        available: whether processes run that start workers.
        sends_ahead: True: the way to a worker takes time.
        changed: called when workers, or `available`, have changed.
        updated: set at the same moment.
    """

    def __init__(self) -> None:
        self._directory = ScratchDirectory()
        self.path = Path(self._directory.name)
        self.available = True
        self.sends_ahead = True
        self.changed: Callable[[], None] = lambda: None
        self.updated = asyncio.Event()
        self._found: dict[Path, RemoteWorker] = {}
        self._search: asyncio.Future[None] | None = None

    @property
    def workers(self) -> list[RemoteWorker]:
        """All workers."""
        return [worker for worker in self._found.values() if worker.is_open]

    def of(self, name: ModelName) -> Sequence[RemoteWorker]:
        """Returns the workers of a model that take turns."""
        found = self._found.values()
        return [worker for worker in found if worker.is_open and worker.takes_turns and worker.name == name]

    def may_come(self, name: ModelName) -> bool:
        """Returns whether calls of a model may wait for a worker."""
        return self.available

    def set_available(self, available: bool) -> None:
        """Sets whether processes run that start workers."""
        if available != self.available:
            self.available = available
            self._tell()

    def open(self) -> None:
        """Begins to look for workers."""
        self._search = asyncio.ensure_future(self._find())

    @property
    def busy_for_s(self) -> float:
        """The seconds until the latest deadline of a call that runs; 0 or less without any."""
        return max((worker.latest_deadline for worker in self.workers), default=0.0) - time.time()

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
        """Looks for new worker sockets in the directory, and connects to each; runs until `close` cancels the task."""
        while True:
            with suppress(OSError):  # no file descriptor is left: tried again
                for path in self.path.iterdir():
                    if path.name.isdigit() and path not in self._found:
                        await self._connect(path)
            await asyncio.sleep(_POLL_S)

    async def _connect(self, path: Path) -> None:
        """Connects to the worker that listens at ``path``; deletes the socket of a process that has ended."""

        def changed() -> None:
            if not worker.is_open:
                self._found.pop(path, None)
                if not worker.may_return:
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
        self.updated.set()
        self.changed()
