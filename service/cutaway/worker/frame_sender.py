"""Sends frames without waiting for their reader."""

from __future__ import annotations

import socket
import threading
from collections import deque
from contextlib import suppress


class FrameSender:
    """Sends on a connection what its buffer takes at once; the rest is sent by a thread, while the model runs on.

    Args:
        connection: a connected socket; errors are left to the one who reads it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._waiting: deque[memoryview] = deque()

    def send(self, data: bytes) -> None:
        """Sends ``data`` after all that was sent before; safe in any thread."""
        with self._lock, suppress(OSError):
            sent = 0 if self._waiting else self._send_now(data)
            if sent < len(data):
                self._waiting.append(memoryview(data)[sent:])
                if len(self._waiting) == 1:
                    threading.Thread(target=self._send_waiting, name="cutaway-sender", daemon=True).start()

    def _send_now(self, data: bytes) -> int:
        try:
            return self._connection.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def _send_waiting(self) -> None:
        with suppress(OSError):
            while True:
                self._connection.sendall(self._waiting[0])
                with self._lock:
                    self._waiting.popleft()
                    if not self._waiting:
                        return
