"""Several TorchServes behind one gateway: they share the calls, and where one dies or hangs no call is lost."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import cutaway as ca
from cutaway.contract.results import ModelName
from tests.support.health import health
from tests.support.processes import family
from tests.support.replicas import UNTIL_RELEASED, X, held, is_at_work, javas, load, package_who, who
from tests.support.serving import Server, package, serving
from tests.support.waiting import PATIENCE_S, until

KILLS = 2

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that tells which TorchServe it is of, by the process number, and takes as many seconds as it is told."""
    directory = tmp_path_factory.mktemp("store")
    package_who(directory)
    return directory


@pytest.fixture(scope="module")
def server(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A gateway before two."""
    with serving(store, tmp_path_factory.mktemp("replicas") / "logs", "--replicas", "2") as running:
        yield running


def test_calls_are_shared(server: Server) -> None:
    """One caller alone is answered by both in turn; callers beside each other, by both alike."""
    both = set(javas(server))
    with ca.Client(server.address) as client:
        said = [who(client) for _ in range(10)]
    assert set(said) == both
    assert all(one != other for one, other in itertools.pairwise(said))
    with load(server, seconds=0.05) as running:  # so that both answer at one pace, whatever else the machine does
        until(lambda: running.answers.total() > 400)
    assert set(running.answers) == both
    assert min(running.answers.values()) > 0.25 * running.answers.total()


def test_the_one_that_is_free_is_asked(store: Path, server: Server) -> None:
    """While one is at a long call, others do not wait behind it."""
    with ca.Client(server.address) as client, ThreadPoolExecutor(1) as caller:
        with held(store):
            long = caller.submit(who, client, UNTIL_RELEASED)
            until(lambda: is_at_work(store))
            said = {who(client) for _ in range(10)}
            assert not long.done()
        assert said.isdisjoint({long.result()})


def test_no_call_is_lost_when_one_is_killed(server: Server) -> None:
    """Under load, one after the other: the gateway serves on, the killed one comes back and takes its share."""
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


def test_one_that_hangs_is_replaced(server: Server) -> None:
    """It is stopped, as a machine may be that has run out of memory: its calls are answered by the other one, the
    gateway serves on, and another one takes its place."""
    both = javas(server)
    victim = next(iter(both))
    with load(server) as running:
        os.kill(both[victim].pid, signal.SIGSTOP)
        until(lambda: len(set(javas(server)) - {victim}) == 2)
        assert health(server.address) == "SERVING"
        (new,) = set(javas(server)) - set(both)
        until(lambda: running.answers[new] > 100)
    assert health(server.address) == "SERVING"
    _shared_again(server)


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
    assert psutil.wait_procs(everything, timeout=PATIENCE_S)[1] == []


@pytest.mark.parametrize("engine", ["processes", "torchserve"])
def test_a_call_outlives_the_signal_that_systemd_sends_to_all(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """SIGTERM for every process of the service: running calls are answered, and then all end."""
    monkeypatch.setenv("CUTAWAY_GRACE_S", str(PATIENCE_S))
    options = (store, tmp_path / "logs", f"--engine={engine}")
    with serving(*options) as running, ThreadPoolExecutor() as pool:
        with ca.Client(running.address, timeout=PATIENCE_S) as client:
            everything = [process for process, _ in family(running)]
            with held(store):
                long = pool.submit(who, client, UNTIL_RELEASED)
                until(lambda: is_at_work(store))
                for process in everything:
                    process.terminate()
                until(lambda: not _listens(running.address))
                time.sleep(1.0)
                assert not long.done()
            assert long.result()
        assert running.process.wait() == 0
    assert psutil.wait_procs(everything, timeout=PATIENCE_S)[1] == []


def _listens(address: str) -> bool:
    host, port = address.split(":")
    with contextlib.suppress(ConnectionError), socket.create_connection((host, int(port))):
        return True
    return False


@pytest.mark.parametrize("engine", ["processes", "torchserve"])
def test_a_long_call_outlives_changes_of_the_store(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """It finishes on the worker that it has, whatever the time that a stop gives it; new calls go to the newest
    version, and in the end nothing of the old ones is left."""
    monkeypatch.setenv("CUTAWAY_GRACE_S", "1")
    served = tmp_path / "store"
    served.mkdir()
    shutil.copy(next(store.glob("*.mar")), served)
    with serving(served, tmp_path / "logs", f"--engine={engine}") as running, ThreadPoolExecutor() as pool:
        with ca.Client(running.address, timeout=PATIENCE_S) as client:
            with held(store):
                long = pool.submit(who, client, UNTIL_RELEASED)
                until(lambda: is_at_work(store))
                for version in ("2.0", "3.0"):
                    package(served, "who", f"{store / 'who.py'}:Who", version=version)
                    until(lambda version=version: ModelName("who", version) in client.list_models())  # type: ignore[misc]
                assert not long.done()
            answered_by, newest = long.result(), who(client)
        assert answered_by != newest
        until(lambda: answered_by not in {process.pid % 65536 for process, _ in family(running)})
