"""Several TorchServes behind one front door: they share the calls, and where one dies or hangs no call is lost."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

import cutaway as ca
from tests.processes import family
from tests.serving import Server, package, serving
from tests.test_survival import health

CALLERS = 8
KILLS = 2
PATIENCE_S = 120.0
X = {"x": np.zeros((1, 1), np.float32)}

WHO = """
import itertools
import os
import time

import torch
from torch import nn

from cutaway.adapters import Adapter
from cutaway.results import InputSpec


class Pid(nn.Module):
    def forward(self, x):
        time.sleep(float(x.max()))
        return x * 0 + os.getppid() % 65536


class Who(Adapter):
    inputs = (InputSpec("x", "float32", (-1, 1)),)

    def build(self):
        return Pid()

    def example(self):
        return {"x": torch.zeros(1, 1)}
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that tells which TorchServe it is of, by the process number, and takes as many seconds as it is told."""
    directory = tmp_path_factory.mktemp("store")
    (directory / "who.py").write_text(WHO)
    package(directory, "who", f"{directory / 'who.py'}:Who")
    return directory


@pytest.fixture(scope="module")
def server(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A front door before two."""
    with serving(store, tmp_path_factory.mktemp("replicas") / "logs", "--replicas", "2") as running:
        yield running


def javas(server: Server) -> dict[int, psutil.Process]:
    """The TorchServes, by what their model says."""
    found = [each for each, words in family(server) if any("org.pytorch.serve" in word for word in words)]
    return {each.pid % 65536: each for each in found}


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def who(client: ca.Client, seconds: float = 0.0) -> int:
    """Whose model answers a call that takes it so many seconds."""
    found = client.inspect("who", {"x": np.full((1, 1), seconds, np.float32)}, timeout=60).predictions["output"]
    return int(found[0, 0])


class Load:
    """Callers that never stop: who answered them how often, and how long the slowest call took."""

    def __init__(self) -> None:
        self.answers: Counter[int] = Counter()
        self.slowest_s = 0.0
        self._over = threading.Event()

    def call(self, client: ca.Client) -> None:
        while not self._over.is_set():
            since = time.monotonic()
            self.answers[who(client)] += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - since)

    def end(self) -> None:
        self._over.set()


@contextmanager
def load(server: Server) -> Iterator[Load]:
    """Around what happens meanwhile; not one call may fail."""
    running = Load()
    with ca.Client(server.address) as client, ThreadPoolExecutor(CALLERS) as callers:
        calling = [callers.submit(running.call, client) for _ in range(CALLERS)]
        try:
            yield running
        finally:
            running.end()
        for each in calling:
            each.result()


def test_calls_are_shared(server: Server) -> None:
    """One caller alone is answered by both in turn; callers beside each other, by both alike."""
    both = set(javas(server))
    with ca.Client(server.address) as client:
        said = [who(client) for _ in range(10)]
    assert set(said) == both
    assert all(one != other for one, other in itertools.pairwise(said))
    with load(server) as running:
        until(lambda: running.answers.total() > 400)
    assert set(running.answers) == both
    assert min(running.answers.values()) > 0.25 * running.answers.total()


def test_the_one_that_is_free_is_asked(server: Server) -> None:
    """While one is at a long call, others do not wait behind it."""
    with ca.Client(server.address) as client, ThreadPoolExecutor(1) as caller:
        long = caller.submit(who, client, 3.0)
        time.sleep(0.5)
        since = time.monotonic()
        said = {who(client) for _ in range(10)}
        assert not long.done()
        assert time.monotonic() - since < 2.0
        assert said.isdisjoint({long.result()})


def test_no_call_is_lost_when_one_is_killed(server: Server) -> None:
    """Under load, one after the other: the front door serves on, the killed one comes back and takes its share."""
    with load(server) as running:
        for number in range(KILLS):
            before = javas(server)
            assert len(before) == 2
            victim = list(before)[number % 2]
            before[victim].kill()
            before[victim].wait(PATIENCE_S)
            assert health(server.address) == "SERVING"
            until(lambda victim=victim: len(set(javas(server)) - {victim}) == 2)  # type: ignore[misc]
            after = set(javas(server)) - set(before)
            until(lambda after=after: all(running.answers[each] for each in after))  # type: ignore[misc]
            assert health(server.address) == "SERVING"
    assert psutil.Process(server.process.pid).is_running()


@pytest.mark.slow
def test_a_call_is_asked_once_more_at_another(server: Server) -> None:
    """The one that has it dies: the caller is answered by the other one, as if nothing had been."""
    both = javas(server)
    with ca.Client(server.address) as client, ThreadPoolExecutor(2) as callers:
        calls = [callers.submit(who, client, 3.0) for _ in both]
        time.sleep(1.0)
        victim, other = both
        both[victim].kill()
        assert [each.result() for each in calls] == [other, other]
    until(lambda: len(set(javas(server)) - {victim}) == 2)
    _shared_again(server)


def _shared_again(server: Server) -> None:
    with ca.Client(server.address) as client:
        until(lambda: {who(client), who(client)} == set(javas(server)))


@pytest.mark.slow
def test_one_that_hangs_is_left_out(server: Server) -> None:
    """It is stopped, as a machine may be that has run out of memory: its calls are answered by the other one, the
    front door serves on, and it takes part again when it goes on."""
    both = javas(server)
    victim, other = both
    os.kill(both[victim].pid, signal.SIGSTOP)
    try:
        with load(server) as running:
            until(lambda: running.slowest_s > 1.0)
            assert health(server.address) == "SERVING"
            told = running.answers[other]
            until(lambda: running.answers[other] > told + 100)
        assert health(server.address) == "SERVING"
        with ca.Client(server.address) as client:
            assert {who(client) for _ in range(10)} == {other}
    finally:
        os.kill(both[victim].pid, signal.SIGCONT)
    _shared_again(server)
    assert set(javas(server)) == set(both)


@pytest.mark.slow
def test_none_is_left(server: Server) -> None:
    """Both are killed: calls are told at once when to try again, health turns, both come back."""
    before = javas(server)
    for each in before.values():
        each.kill()
    until(lambda: health(server.address) == "NOT_SERVING")
    with ca.Client(server.address) as client:
        with pytest.raises(ca.Unavailable) as caught:
            client.inspect("who", X)
        assert caught.value.reason == "BACKEND_UNAVAILABLE"
        assert caught.value.retry_after_s
    until(lambda: health(server.address) == "SERVING")
    until(lambda: len(set(javas(server)) - set(before)) == 2)
    _shared_again(server)


def test_each_has_its_log(server: Server) -> None:
    """Two programs that write one file and move it aside when it is large would lose lines."""
    assert {path.name for path in server.log_dir.iterdir()} == {"torchserve.log", "torchserve-2.log"}


@pytest.mark.slow
def test_a_reload_takes_over(store: Path, tmp_path: Path) -> None:
    """A new version is put into the store, and one of the old TorchServes is killed amid its loading: no call fails,
    two new ones answer, nothing of the old ones is left, and SIGTERM ends them all."""
    served = tmp_path / "store"
    served.mkdir()
    shutil.copy(next(store.glob("*.mar")), served)
    with serving(served, tmp_path / "logs", "--replicas", "2") as running:
        before = javas(running)
        with load(running) as calls:
            package(served, "who", f"{store / 'who.py'}:Who", version="2.0")
            until(lambda: len(javas(running)) > 2)
            next(iter(before.values())).kill()
            with ca.Client(running.address) as client:
                until(lambda: client.inspect("who", X).provenance.version == "2.0")
            until(lambda: len(javas(running)) == 2 and set(javas(running)).isdisjoint(before))
            after = set(javas(running))
            until(lambda: all(calls.answers[each] for each in after))
        everything = [each for each, _ in family(running)]
        assert running.stop() == 0
    assert psutil.wait_procs(everything, timeout=30)[1] == []
