"""Sends a streamed reply from a worker to the gateway over a Unix socket that bypasses TorchServe.

TorchServe copies everything that a worker sends several times, and buffers it until it is read. But gateway and workers
share a machine: the worker writes into a socket, and waits there for the reader. Each message follows its size; a
message of size 0 is the end, and an end without it means that the worker died.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
import time
from collections.abc import AsyncGenerator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from cutaway.errors import CutawayError, Reason, error
from cutaway.worker_protocol.socket_directory import PREFIX, ScratchDirectory

PATIENCE_S = 10.0
"""Seconds that a worker waits for a reader that reads nothing."""

Parts: TypeAlias = tuple[bytes, memoryview]
"""A message as head and body; the body is not copied."""

_SIZE = struct.Struct("<I")
_NAME = "pieces"
_BUFFER_BYTES = 2 << 20
_SLACK_S = 0.05  # difference between clocks and timers


class ReplyReceiver:
    """The gateway's side, for one reply: a context manager whose exit closes the connection.

    Attributes:
        path: path of the socket, for the part ``pipe``.
    """

    def __enter__(self) -> ReplyReceiver:
        self._directory = ScratchDirectory()
        self.path = Path(self._directory.name) / _NAME
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._listener.setblocking(False)
        self._connection = socket.socket(socket.AF_UNIX)
        self._thread = ThreadPoolExecutor(1, "cutaway-reply-receiver")
        return self

    def accept(self) -> None:
        """Accepts the worker's connection; the last one, if the call was retried."""
        with suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                self._connection.close()
                self._connection = connection
        self._connection.setblocking(True)

    async def messages(self, until: float) -> AsyncGenerator[bytes, None]:
        """Yields the worker's messages; reads one message ahead.

        Args:
            until: deadline of the call, in Unix seconds.

        Raises:
            CutawayError: ``DEADLINE_EXCEEDED``, also if nothing was read for `PATIENCE_S`; ``WORKER_DIED``.
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
        """Ends both reads and writes of the socket."""
        with suppress(OSError):  # it was not connected
            self._connection.shutdown(socket.SHUT_RDWR)

    def __exit__(self, *_: object) -> None:
        self._hang_up()
        self._thread.submit(self._connection.close)  # after the last read
        self._thread.shutdown(wait=False)
        self._listener.close()
        self._directory.cleanup()


def _message(connection: socket.socket) -> bytes | None:
    """Returns the next message; empty at the end, None if the connection ended before."""
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
        return error(Reason.DEADLINE_EXCEEDED, f"nothing of the reply was read for {waited:.0f} s")
    return error(Reason.WORKER_DIED, "the worker process died during this call; a new one is starting")


class ReplySender:
    """The worker's side, for one reply.

    Args:
        path: the part ``pipe`` of the call.
        until: deadline of the call, in Unix seconds; None for no deadline.

    Raises:
        CutawayError: the gateway does not listen there.
    """

    def __init__(self, path: bytes, until: float | None) -> None:
        self._until = until
        where = Path(os.fsdecode(path))
        # A caller of TorchServe's port must not make a worker write to any other socket of this machine.
        if where.name != _NAME or not where.parent.name.startswith(PREFIX):
            raise error(Reason.MALFORMED_REQUEST, "pipe is the path of a socket made by the gateway")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        try:
            self._socket.settimeout(PATIENCE_S)
            self._socket.connect(str(where))
        except OSError:
            self._socket.close()
            raise error(Reason.DEADLINE_EXCEEDED, "the caller has cancelled") from None

    def send(self, messages: Iterable[Parts]) -> None:
        """Sends all messages from a new thread, while the model runs other requests; stops if the reader reads nothing
        for `PATIENCE_S`, or closes the connection."""
        threading.Thread(target=self._send, args=(messages,), name="cutaway-reply-sender", daemon=True).start()

    def _send(self, messages: Iterable[Parts]) -> None:
        with self._socket, suppress(OSError):
            for head, rest in messages:
                self._socket.settimeout(self._patience())
                self._socket.sendall(_SIZE.pack(len(head) + len(rest)) + head)
                self._socket.sendall(rest)
            self._socket.sendall(_SIZE.pack(0))

    def _patience(self) -> float:
        """Returns the seconds until the next message must have been read."""
        left = PATIENCE_S if self._until is None else self._until - time.time()
        if left <= 0:
            raise TimeoutError
        return min(left, PATIENCE_S)
