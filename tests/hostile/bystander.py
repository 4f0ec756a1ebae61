"""A caller with a process of its own, who asks another model all the while, and notes how long each call took."""

from __future__ import annotations

import http.client
import multiprocessing
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

PAUSE_S = 0.01


@dataclass(frozen=True)
class Wait:
    """One call: when it began by the system's monotonic clock, how long it took in seconds, and its status."""

    begin: float
    took: float
    status: int


class Bystander:
    """Its calls so far."""

    def __init__(self) -> None:
        self._waits: list[Wait] = []

    def read(self, pipe: Connection) -> None:
        """Notes the calls in ``pipe`` until its other end is closed."""
        with suppress(EOFError):
            while True:
                self._waits.append(pipe.recv())

    def since(self, begin: float) -> list[Wait]:
        """Returns the calls that ended since then."""
        return [wait for wait in list(self._waits) if wait.begin + wait.took >= begin]


@contextmanager
def bystander(address: str, path: str, body: bytes) -> Iterator[Bystander]:
    """A bystander who posts ``body`` while the block runs."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    over = context.Event()
    process = context.Process(target=_ask_until, args=(address, path, body, there, over), daemon=True)
    process.start()
    there.close()
    asking = Bystander()
    threading.Thread(target=asking.read, args=(here,), daemon=True).start()
    while not asking.since(0.0):
        time.sleep(0.1)
    try:
        yield asking
    finally:
        over.set()
        process.join()


def _ask_until(address: str, path: str, body: bytes, pipe: Connection, over: Event) -> None:
    connection = http.client.HTTPConnection(address, timeout=300)
    while not over.is_set():
        begin = time.monotonic()
        try:
            connection.request("POST", path, body, {"content-type": "application/json"})
            reply = connection.getresponse()
            reply.read()
            status = reply.status
        except (OSError, http.client.HTTPException):
            connection.close()
            status = 0
        pipe.send(Wait(begin, time.monotonic() - begin, status))
        time.sleep(PAUSE_S)
