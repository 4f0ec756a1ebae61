"""A reply in pieces on its way from a worker to the front door: a socket of their own, past TorchServe.

TorchServe copies whatever a worker sends several times, and keeps it until it is read. But front door and workers share
a machine: so the worker writes straight into a socket, and waits there for whoever reads. Each message comes behind its
size, the end is a message of size 0; an end without it is that the worker stopped.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import AsyncGenerator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from cutaway.errors import CutawayError, Reason, error
from cutaway.scratch import PREFIX, scratch_directory

log = logging.getLogger(__name__)

PATIENCE_S = 10.0
"""How long a worker waits for a reader that takes nothing."""

Parts: TypeAlias = tuple[bytes, memoryview]
"""A message as its head and the rest, which lies elsewhere and is not copied."""

_SIZE = struct.Struct("<I")
_NAME = "pieces"
_BUFFER_BYTES = 2 << 20
_SLACK_S = 0.05  # by which clocks and timers differ


class Inlet:
    """The front door's end, for one reply: a context manager, at whose exit the worker learns that nobody reads.

    Attributes:
        path: what the worker is told.
    """

    def __enter__(self) -> Inlet:
        self._directory = scratch_directory()
        self.path = Path(self._directory.name) / _NAME
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._listener.setblocking(False)
        self._connection = socket.socket(socket.AF_UNIX)
        self._thread = ThreadPoolExecutor(1, "cutaway-inlet")
        return self

    def accept(self) -> None:
        """Take the connection of the worker that has answered: the last one, where it was asked more than once."""
        with suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                self._connection.close()
                self._connection = connection
        self._connection.setblocking(True)

    async def messages(self, until: float) -> AsyncGenerator[bytes, None]:
        """What the worker sends, one message ahead of what was taken.

        Args:
            until: when the call's time is up, as Unix seconds.

        Raises:
            CutawayError: ``DEADLINE_EXCEEDED``, also where nothing was taken for long; ``WORKER_DIED``, where
                the worker is gone.
        """
        waited = 0.0
        timer = asyncio.get_running_loop().call_later(until - time.time(), self._hang_up)
        try:
            following = self._read()
            while message := await following:
                following = self._read()
                since = time.monotonic()
                yield message
                waited = max(waited, time.monotonic() - since)
            if message is None:
                raise _broken(waited, until)
        finally:
            timer.cancel()

    def _read(self) -> asyncio.Future[bytes | None]:
        return asyncio.get_running_loop().run_in_executor(self._thread, _message, self._connection)

    def _hang_up(self) -> None:
        """End both who reads and who writes."""
        with suppress(OSError):  # not connected
            self._connection.shutdown(socket.SHUT_RDWR)

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hang_up()
        self._thread.submit(self._connection.close)  # then
        self._thread.shutdown(wait=False)
        self._listener.close()
        self._directory.cleanup()


def _message(connection: socket.socket) -> bytes | None:
    """The next message; empty at the end, None if that came too early."""
    try:
        size = connection.recv(_SIZE.size, socket.MSG_WAITALL)
        if len(size) < _SIZE.size:
            return None
        (count,) = _SIZE.unpack(size)
        message = connection.recv(count, socket.MSG_WAITALL)
        return message if len(message) == count else None
    except OSError:
        return None


def _broken(waited: float, until: float) -> CutawayError:
    if time.time() > until - _SLACK_S:
        return error(Reason.DEADLINE_EXCEEDED, "the deadline passed before the whole reply was sent")
    if waited >= PATIENCE_S:
        return error(Reason.DEADLINE_EXCEEDED, f"nothing of the reply was taken for {waited:.0f} s")
    return error(Reason.WORKER_DIED, "the worker that had this call died; another one is starting")


class Outlet:
    """The worker's end, for one reply.

    Args:
        path: what the front door said.
        until: when the call's time is up, as Unix seconds; None for never.

    Raises:
        CutawayError: nobody listens there.
    """

    def __init__(self, path: bytes, until: float | None) -> None:
        self._until = until
        where = Path(os.fsdecode(path))
        # Whoever reaches TorchServe's port must not have a worker talk to any socket of this machine.
        if where.name != _NAME or not where.parent.name.startswith(PREFIX):
            raise error(Reason.MALFORMED_REQUEST, "pipe is the path of a front door's socket")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        try:
            self._socket.settimeout(PATIENCE_S)
            self._socket.connect(str(where))
        except OSError:
            self._socket.close()
            raise error(Reason.DEADLINE_EXCEEDED, "the caller hung up") from None

    def send(self, messages: Iterable[Parts]) -> None:
        """Send all from a thread of its own, while the model goes on with the next question. A reader that takes
        nothing for long, or is gone, ends it."""
        threading.Thread(target=self._send, args=(messages,), name="cutaway-outlet", daemon=True).start()

    def _send(self, messages: Iterable[Parts]) -> None:
        with self._socket, suppress(OSError):
            for head, rest in messages:
                self._socket.settimeout(self._patience())
                self._socket.sendall(_SIZE.pack(len(head) + len(rest)) + head)
                self._socket.sendall(rest)
            self._socket.sendall(_SIZE.pack(0))

    def _patience(self) -> float:
        """Seconds until the next message must have been taken."""
        left = PATIENCE_S if self._until is None else self._until - time.time()
        if left <= 0:
            raise TimeoutError
        return min(left, PATIENCE_S)
