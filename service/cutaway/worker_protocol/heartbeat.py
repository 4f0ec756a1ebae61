"""Heartbeats: a worker tells the gateway, twice a second, that it runs and by when its calls must be done.

A worker connects to a Unix socket of the gateway. Its first line is its process ID and its model; each further line is
the latest deadline of the calls that it runs, in Unix seconds, or 0 if it runs none. The connection ends with the
process.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from cutaway.results import ModelName
from cutaway.worker_protocol.torchserve_messages import CallParts

VARIABLE = "CUTAWAY_HEARTBEATS"
"""The environment variable with the path of the gateway's socket."""

INTERVAL_S = 0.5
IDLE = 0.0


class Hello(NamedTuple):
    """The first line of a connection."""

    pid: int
    model: ModelName

    def encode(self) -> bytes:
        """Returns the line."""
        return f"{self.pid} {self.model.model} {self.model.version}\n".encode()

    @classmethod
    def decode(cls, line: bytes) -> Hello:
        """Parses the line; names of models and versions have no spaces."""
        pid, model, version = line.decode().split(" ")
        return cls(int(pid), ModelName(model, version))


def latest_deadline(calls: Iterable[CallParts]) -> float:
    """Returns the latest deadline of ``calls``, in Unix seconds; infinite if one has none."""
    return max((_deadline(call.get("deadline", b"")) for call in calls), default=IDLE)


def _deadline(part: bytes) -> float:
    with suppress(ValueError):  # the call is refused
        return float(part)
    return float("inf")


def send_heartbeats(model: ModelName, busy_until: Callable[[], float]) -> None:
    """Starts a thread that sends heartbeats until this process ends; does nothing if no gateway has started it.

    Args:
        model: the model of this worker.
        busy_until: returns the latest deadline of the running calls, or `IDLE`.

    Raises:
        OSError: the gateway does not listen.
    """
    if not (path := os.environ.get(VARIABLE)):
        return
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.sendall(Hello(os.getpid(), model).encode())
    threading.Thread(target=_send, args=(connection, busy_until), name="cutaway-heartbeats", daemon=True).start()


def _send(connection: socket.socket, busy_until: Callable[[], float]) -> None:
    with connection, suppress(OSError):
        while True:
            connection.sendall(f"{busy_until()!r}\n".encode())
            time.sleep(INTERVAL_S)
