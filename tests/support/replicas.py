"""A model that tells which TorchServe answered, and callers that never stop."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil

import cutaway as ca
from tests.support.processes import family
from tests.support.serving import Server, package
from tests.support.waiting import PATIENCE_S

CALLERS = 8
X = {"x": np.zeros((1, 1), np.float32)}
UNTIL_RELEASED = -1.0
"""Seconds of a call that takes as long as the block of `held`."""

_WHO = """
import os
import time
from pathlib import Path

import torch
from torch import nn

from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec

HELD = Path({held!r})


class Pid(nn.Module):
    def forward(self, x):
        seconds = float(x.max())
        if seconds == {until_released} and HELD.exists():
            HELD.write_text("at work")
            while HELD.exists():
                time.sleep(0.01)
        elif seconds != {until_released}:
            time.sleep(seconds)  # raises for negative ones, such as those that probe a model when it is loaded
        return x * 0 + os.getppid() % 65536


class Who(Adapter):
    inputs = (InputSpec("x", "float32", (-1, 1)),)

    def build(self):
        return Pid()

    def example(self):
        return {{"x": torch.zeros(1, 1)}}
"""


def package_who(store: Path, version: str = "1.0") -> None:
    """Writes an archive into ``store``: the model ``who`` returns the process number of its TorchServe, modulo 65536,
    and takes as many seconds as its input says."""
    adapter = store / "who.py"
    adapter.write_text(_WHO.format(held=str(_held(store)), until_released=UNTIL_RELEASED))
    package(store, "who", f"{adapter}:Who", version=version)


def _held(store: Path) -> Path:
    return store / "held"


@contextmanager
def held(store: Path) -> Iterator[None]:
    """A block during which a call of `UNTIL_RELEASED` seconds does not end."""
    _held(store).touch()
    try:
        yield
    finally:
        _held(store).unlink()


def is_at_work(store: Path) -> bool:
    """Returns whether such a call has reached its model."""
    return _held(store).read_text() != ""


def javas(server: Server) -> dict[int, psutil.Process]:
    """The TorchServes, by what their model says."""
    found = [each for each, words in family(server) if any("org.pytorch.serve" in word for word in words)]
    return {each.pid % 65536: each for each in found}


def who(client: ca.Client, seconds: float = 0.0) -> int:
    """Whose model answers a call that takes it so many seconds."""
    x = {"x": np.full((1, 1), seconds, np.float32)}
    return int(client.inspect("who", x, timeout=PATIENCE_S).predictions["output"][0, 0])


class Load:
    """Callers that never stop: who answered them how often, and how long the slowest call took."""

    def __init__(self, seconds: float) -> None:
        self.answers: Counter[int] = Counter()
        self.slowest_s = 0.0
        self._seconds = seconds
        self._over = threading.Event()

    def call(self, client: ca.Client) -> None:
        """Calls until the end."""
        while not self._over.is_set():
            since = time.monotonic()
            self.answers[who(client, self._seconds)] += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - since)

    def end(self) -> None:
        """Lets the callers stop."""
        self._over.set()


@contextmanager
def load(server: Server, seconds: float = 0.0) -> Iterator[Load]:
    """Calls of so many seconds each, throughout the block; not one of them may fail."""
    running = Load(seconds)
    with ca.Client(server.address) as client, ThreadPoolExecutor(CALLERS) as callers:
        calling = [callers.submit(running.call, client) for _ in range(CALLERS)]
        try:
            yield running
        finally:
            running.end()
        for each in calling:
            each.result()
