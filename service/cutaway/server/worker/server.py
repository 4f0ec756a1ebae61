"""A worker's Unix socket, which takes turns from gateways, and sends replies and heartbeats.

See `cutaway.server.worker_protocol` for the frames.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TypeVar

from cutaway.contract.tensors import Buffer
from cutaway.contract.wire.chunks import as_message
from cutaway.server.memory import start
from cutaway.server.worker.call import PATIENCE_S
from cutaway.server.worker.calls import Calls
from cutaway.server.worker.worker import Worker
from cutaway.server.worker_protocol import (
    DEADLINE,
    HEARTBEAT_INTERVAL_S,
    Frame,
    FrameKind,
    FrameReader,
    frame,
    frame_of,
    listening,
)
from cutaway.v1 import worker_pb2

T = TypeVar("T")


class FrameSender:
    """A sender of frames that does not wait for their reader.

    It sends as much as the connection's buffer takes; a thread sends the rest, while the model runs on.

    Args:
        connection: a connected socket; its reader handles errors.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._waiting: deque[memoryview] = deque()

    def send(self, *parts: Buffer) -> None:
        """Sends ``parts`` after all that was sent before; safe in any thread. They must not change later."""
        with self._lock:
            is_free = not self._waiting
            self._waiting.extend(memoryview(part) for part in parts if part)
            if is_free and not self._send_now():
                start(threading.Thread(target=self._send_waiting, name="cutaway-sender", daemon=True))

    def flush(self) -> None:
        """Waits until everything is sent, for `PATIENCE_S` at most."""
        until = time.monotonic() + PATIENCE_S
        while self._waiting and time.monotonic() < until:
            time.sleep(_POLL_S)

    def _send_now(self) -> bool:
        """Sends what the connection's buffer takes; returns whether nothing is left to send."""
        try:
            while self._waiting:
                self._sent(self._connection.sendmsg(self._next(), (), socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False
        except OSError:
            self._waiting.clear()  # nobody will get it
        return True

    def _send_waiting(self) -> None:
        """Sends the waiting parts until none is left; runs in a thread after the connection's buffer was full."""
        with self._lock:
            parts = self._next()
        while parts:
            try:
                sent = self._connection.sendmsg(parts)
            except OSError:
                with self._lock:
                    self._waiting.clear()
                return
            with self._lock:
                self._sent(sent)
                parts = self._next()

    def _next(self) -> list[memoryview]:
        return list(islice(self._waiting, _MOST_PARTS))

    def _sent(self, size: int) -> None:
        """Drops the first ``size`` bytes."""
        while size:
            first = self._waiting.popleft()
            if size < len(first):
                self._waiting.appendleft(first[size:])
                return
            size -= len(first)


_MOST_PARTS = 512
"""The most parts that the system takes at once are 1,024."""

_PAUSE_S = 0.1
_TRIES = 50
_POLL_S = 0.01
_BUFFER_BYTES = 2 << 20
_LATE_INTERVAL_S = 0.05


class WorkerServer:
    """A server of a worker for processes of the same user, until this process ends.

    Args:
        worker: the worker.
        path: the path of the socket, which appears when the server listens. Its name is the number of this process, or
            "0" if the gateway may be on another machine.
    """

    def __init__(self, worker: Worker, path: Path) -> None:
        self._worker = worker
        self._number = int(path.name)
        self._connected: dict[FrameSender, Calls] = {}
        self._user = os.geteuid()
        self._listener = listening(path)
        for job in (self._accept, self._beat):
            threading.Thread(target=_needed, args=(job,), name=f"cutaway{job.__name__}", daemon=True).start()

    @property
    def calls(self) -> int:
        """The number of calls under way."""
        return sum(len(calls) for calls in [*self._connected.values()])

    @property
    def waiting(self) -> int:
        """The number of calls that wait in the gateways whose calls are under way."""
        return sum(calls.waiting for calls in [*self._connected.values()] if len(calls))

    def leave(self) -> None:
        """Asks the gateways to send no more turns, and to close their connections after the last reply."""
        for sender in [*self._connected]:
            sender.send(frame(FrameKind.LEAVE))

    def _end(self) -> None:
        """Ends this process, so that another worker takes its place; gateways send its other calls again."""
        for sender in [*self._connected]:
            sender.flush()
        os._exit(1)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # no file descriptor is left: tried again
                time.sleep(_PAUSE_S)
                continue
            connection.settimeout(None)  # a model's code may have set a default for all sockets
            if _user_of(connection) in (None, self._user, 0):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
                start(threading.Thread(target=self._serve, args=(connection,), name="cutaway-connection", daemon=True))
            else:
                connection.close()

    def _beat(self) -> None:
        while True:
            # The gateway counts a worker as late until it hears otherwise, also when that one answers again.
            time.sleep(_LATE_INTERVAL_S if self._worker.late_s else HEARTBEAT_INTERVAL_S)
            self._worker.pieces.drop_late()
            for sender in [*self._connected]:
                sender.send(frame(FrameKind.HEARTBEAT, DEADLINE.pack(self._worker.threads.busy_until)))

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            frames = self._frames(connection)
            first = _needed(lambda: next(frames, None))
            if first is not None and first.kind == FrameKind.FETCH:
                self._send_pieces(connection, first.number)
            elif first is not None:
                _needed(lambda: self._serve_calls(FrameSender(connection), frames))

    def _frames(self, connection: socket.socket) -> Iterator[Frame]:
        """Yields the frames that arrive, until the connection ends."""
        reader = FrameReader()
        while size := _received(connection, reader, lambda: self.calls > 0):
            yield from reader.read(size)

    def _serve_calls(self, sender: FrameSender, frames: Iterator[Frame]) -> None:
        """Runs the turns and cancellations of one gateway; cancels its other calls when the connection ends."""
        calls = Calls(
            self._worker,
            lambda number, reply: sender.send(*frame_of(reply, FrameKind.REPLY, number)),
            lambda number: sender.send(frame(FrameKind.ASIDE, number=number)),
            self._end,
            lambda number, reply: sender.send(frame(FrameKind.BEGUN, reply, number)),
        )
        name = self._worker.name
        hello = worker_pb2.WorkerHello(pid=self._number, model=name.model, version=name.version)
        sender.send(frame(FrameKind.HELLO, hello.SerializeToString()))
        self._connected[sender] = calls
        try:
            for kind, number, data in frames:
                if kind == FrameKind.TURN:
                    turn = worker_pb2.WorkerTurn.FromString(bytes(data))
                    calls.waiting = turn.waiting
                    calls.run(turn.calls, alone=turn.alone)
                elif kind == FrameKind.CANCEL:
                    calls.cancel(number)
        finally:
            del self._connected[sender]
            calls.cancel_all()

    def _send_pieces(self, connection: socket.socket, number: int) -> None:
        """Sends a streamed reply, and stops if the reader reads nothing for `PATIENCE_S`."""
        pieces = self._worker.pieces.take(number)
        if pieces is None:  # dropped, because nobody fetched them in time
            return
        connection.settimeout(PATIENCE_S)
        for piece in pieces:
            for part in frame_of(as_message(piece), FrameKind.PIECE):
                connection.sendall(part)
        connection.sendall(frame(FrameKind.END))


def _needed(job: Callable[[], T]) -> T:
    """Returns the result of ``job``; if ``job`` fails, ends this process, so that another worker takes its place.

    An OSError is raised instead: it means only that the other end has closed the connection.
    """
    try:
        return job()
    except OSError:  # the other end has closed the connection
        raise
    except BaseException:
        try:
            traceback.print_exc()
        finally:
            os._exit(1)


def _received(connection: socket.socket, reader: FrameReader, is_busy: Callable[[], bool]) -> int:
    """Receives what has arrived, and returns its size; waits where calls under way have all memory: it stays in the
    socket meanwhile.

    Raises:
        MemoryError: there is none, and no call that could give it back.
    """
    tries = 0
    while True:
        try:
            return connection.recv_into(reader.space())
        except MemoryError:
            tries = 0 if is_busy() else tries + 1
            if tries == _TRIES:
                raise
            time.sleep(_PAUSE_S)


def _user_of(connection: socket.socket) -> int | None:
    """Returns the user whose process has connected. None elsewhere than on Linux: there the socket's directory decides,
    which only this user may enter."""
    if sys.platform != "linux":
        return None
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(user)
