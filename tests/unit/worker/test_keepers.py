"""Keepers as forks of one process: each leads its own group, and that process may end or hang."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cutaway.contract.errors import CutawayError
from cutaway.server.archive import reader
from cutaway.server.processes.worker_processes import Fork, Keepers
from cutaway.server.worker_protocol import KeeperOrder
from tests.support.serving import package
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture(scope="module")
def keepers() -> Iterator[Keepers]:
    """All their keepers have ended, or end with them."""
    found = Keepers()
    yield found
    for each in STARTED:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(each.pid, signal.SIGKILL)
    found.close()


STARTED: list[Fork] = []


def order(directory: Path, model: Path = Path("/nowhere"), load_s: float = 600.0, **variables: str) -> KeeperOrder:
    """Of a keeper; by default of one whose model cannot be loaded."""
    log, environment = str(directory / "log"), {**os.environ, **variables}
    return KeeperOrder([(str(model), "none", "1.0", 1)], 0, str(directory), log, environment, load_s)


def started(keepers: Keepers, order: KeeperOrder) -> Fork:
    STARTED.append(keepers.start(order, lambda: Path(order.log).read_text()))
    return STARTED[-1]


def ended(*forks: Fork) -> None:
    for each in forks:
        assert each.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            each.wait(0.0)
        os.killpg(each.pid, signal.SIGKILL)
        assert each.wait(PATIENCE_S) == each.poll() == 1


def open_files(of: Fork) -> set[str]:
    """The files and sockets that it has open; workers come and go, and with them pipes."""
    found = set()
    for path in Path(f"/proc/{of.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(path))
    return {each for each in found if not each.startswith(("pipe:", "/proc/"))}


def fork_server(of: Fork) -> psutil.Process:
    parent = psutil.Process(of.pid).parent()
    assert parent is not None
    return parent


def test_each_has_what_its_order_says(keepers: Keepers, tmp_path: Path) -> None:
    """A group, a directory and a log of its own; nothing else is open in it but pipes to its workers."""
    forks = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        forks.append(started(keepers, order(tmp_path / name)))
    for each, name in zip(forks, ("one", "two")):
        process = psutil.Process(each.pid)
        assert os.getpgid(each.pid) == os.getsid(each.pid) == each.pid
        assert process.cwd() == str(tmp_path / name)
        log = tmp_path / name / "log"
        until(lambda each=each, log=log: open_files(each) == {os.devnull, str(log)})  # type: ignore[misc]
        until(lambda log=log: "/nowhere" in log.read_text())  # type: ignore[misc]
    assert fork_server(forks[0]) == fork_server(forks[1])
    ended(*forks)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_process_may_end_or_hang(keepers: Keepers, tmp_path: Path, number: signal.Signals) -> None:
    """Another one takes its place at the next start; the keepers before live on."""
    first = started(keepers, order(tmp_path))
    before = fork_server(first)
    before.send_signal(number)
    second = started(keepers, order(tmp_path))
    assert fork_server(second) != before
    before.wait(PATIENCE_S)
    ended(first, second)


ADAPTER = """
import os, subprocess, sys, threading, time
from pathlib import Path
from torch import nn
from cutaway.adapters import Adapter

def note(pid):
    with open("loads", "a") as file:
        file.write(f"{pid}\\n")

class Net(Adapter):
    def build(self):
        note(os.getpid())
        LOAD
        return nn.Linear(1, 1)
"""
FORK = "child = os.fork()\n        if not child: time.sleep(600)\n        note(child)\n        "


@pytest.mark.parametrize(
    ("load", "load_s"),
    [
        (f"{FORK}os._exit(1)", 600.0),
        (f"{FORK}time.sleep(600)", 1.0),
        ("threading.Thread(target=time.sleep, args=(600,)).start(); raise OSError", 600.0),
    ],
    ids=["it has forked", "it hangs", "it has a thread"],
)
def test_a_worker_that_ends_is_followed_by_another(keepers: Keepers, tmp_path: Path, load: str, load_s: float) -> None:
    """Whatever its model has begun, which ends too; so does a load that takes too long."""
    (tmp_path / "net_adapter.py").write_text(ADAPTER.replace("LOAD", load))
    archive, model = (
        package(tmp_path, "none", f"{tmp_path}/net_adapter.py:Net", random_weights=True),
        tmp_path / "model",
    )
    reader.unpack(archive, model)
    fork = started(keepers, order(tmp_path, model, load_s))
    of_a_load = 2 if FORK in load else 1

    def loaded() -> list[int]:
        file = model / "loads"
        return [int(line) for line in file.read_text().splitlines()] if file.exists() else []

    until(lambda: len(loaded()) > of_a_load)
    until(lambda: not any(map(psutil.pid_exists, loaded()[:of_a_load])))
    ended(fork)


def test_a_keeper_that_cannot_begin_says_so(keepers: Keepers, tmp_path: Path) -> None:
    """The start fails at once, and the next one succeeds."""
    with pytest.raises(CutawayError, match="no process can start workers"):
        started(keepers, order(tmp_path)._replace(directory="/nowhere"))
    ended(started(keepers, order(tmp_path)))


def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    """The error has the log."""
    keepers = Keepers()
    with pytest.raises(CutawayError, match="No module named 'torch'"):
        started(keepers, order(tmp_path, PYTHONPATH=str(_without_torch(tmp_path))))
    keepers.close()


def _without_torch(tmp_path: Path) -> Path:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    return tmp_path


def test_a_start_under_way_ends_when_refused(tmp_path: Path) -> None:
    """Its imports take seconds, for which the end of a server does not wait; later starts fail too."""
    keepers, failures = Keepers(), []

    def start() -> None:
        with pytest.raises(CutawayError) as caught:
            started(keepers, order(tmp_path, PYTHONPATH=str(_endless(tmp_path))))
        failures.append(caught.value)

    thread = threading.Thread(target=start)
    thread.start()
    until(lambda: (tmp_path / "begun").exists())
    keepers.refuse()
    thread.join()
    start()
    assert [each.reason for each in failures] == ["BACKEND_UNAVAILABLE"] * 2
    keepers.close()


def _endless(tmp_path: Path) -> Path:
    (tmp_path / "torch.py").write_text(f"open({str(tmp_path / 'begun')!r}, 'w'); import time; time.sleep(600)")
    return tmp_path


def test_no_keeper_outlives_a_server_that_was_killed_meanwhile(tmp_path: Path) -> None:
    """The order was sent, and whoever sent it is gone before the imports end."""
    ours, its = socket.socketpair()
    with its:
        command = [sys.executable, "-m", "cutaway.server.worker.keeper"]
        process = subprocess.Popen(command, stdin=its.fileno(), stdout=its.fileno(), stderr=subprocess.DEVNULL)
    ours.sendall(json.dumps(order(tmp_path)._asdict()).encode() + b"\n")
    ours.close()
    assert process.wait(PATIENCE_S) == 0
    until(lambda: str(tmp_path) not in {_directory(each) for each in psutil.process_iter()})
    assert "/nowhere" not in (tmp_path / "log").read_text()


def _directory(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.cwd()
    return ""
