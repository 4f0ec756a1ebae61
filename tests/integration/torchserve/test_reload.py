"""A model store that changes while it is served: new versions take over without a failed call."""

from __future__ import annotations

import resource
import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import cutaway as ca
from tests.conftest import ADAPTERS
from tests.support.processes import family
from tests.support.serving import Server, package, serving
from tests.support.waiting import until

CALLERS = 4
TINY = f"{ADAPTERS / 'tiny_adapter.py'}:Tiny"
X = {"x": np.ones((1, 3), np.float32)}


def version(client: ca.Client, model: str = "tiny") -> str:
    """Of the model that answers."""
    return client.inspect(model, X, timeout=300).provenance.version


def engines(server: Server) -> int:
    """How many TorchServes, or keepers of workers, run."""
    return sum("watchdog" not in str(words) for each, words in family(server) if each.ppid() == server.process.pid)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torchserve", "processes", "ray"])
def test_a_new_version_takes_over_without_a_failed_call(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers go on calling while an archive is put into the store: not one call fails, those that name no version get
    the new one once it answers, those that name the old one keep it, and of the processes before nothing is left. An
    archive that cannot be loaded changes nothing. Archives that go, go. A normal end leaves no temporary file."""
    monkeypatch.setenv("CUTAWAY_RAY_CPUS", "0.1")
    scratch = tempfile.mkdtemp(dir="/tmp")  # short enough for the sockets of each engine
    monkeypatch.setenv("TMPDIR", scratch)
    store = tmp_path / "store"
    package(store, "tiny", TINY)
    package(tmp_path / "later", "tiny", TINY, version="1.1")
    over = threading.Event()
    with serving(store, tmp_path / "logs", f"--engine={engine}") as server, ca.Client(server.address) as client:
        seen: list[set[str]] = [set() for _ in range(CALLERS)]

        def call(number: int) -> None:
            while not over.is_set():
                seen[number].add(version(client, "tiny/versions/1.0" if number else "tiny"))

        with ThreadPoolExecutor(CALLERS) as callers:
            calling = [callers.submit(call, number) for number in range(CALLERS)]
            try:
                shutil.copy(tmp_path / "later" / "tiny-1.1.mar", store)
                until(lambda: "1.1" in seen[0])
                until(lambda: engines(server) == 1)
            finally:
                over.set()
            for each in calling:
                each.result()
        assert seen == [{"1.0", "1.1"}, *[{"1.0"}] * (CALLERS - 1)]
        assert [each.version for each in client.list_models()] == ["1.0", "1.1"]

        (store / "broken-1.0.mar").write_bytes(b"no archive")
        (store / "tiny-1.0.mar").unlink()
        until(lambda: [each.version for each in client.list_models()] == ["1.1"])
        assert version(client) == "1.1"
        with pytest.raises(ca.NotFound, match=r"served in 1\.1, not in 1\.0"):
            version(client, "tiny/versions/1.0")

        (store / "tiny-1.1.mar").unlink()
        until(lambda: _says(server, "the previous models stay in service"))
        assert version(client) == "1.1"
        assert list(Path(scratch).glob("cutaway-*"))
        assert server.stop() == 0
    assert not list(Path(scratch).glob("cutaway-*"))
    shutil.rmtree(scratch)


@pytest.mark.slow
def test_a_server_that_can_open_no_file_keeps_what_serves(tmp_path: Path) -> None:
    """Without file descriptors the store cannot be watched nor read; calls are answered all the while, the operator is
    told, and once there are some again, the new version takes over by itself."""
    store = tmp_path / "store"
    package(store, "tiny", TINY)
    with serving(store, tmp_path / "logs") as server, ca.Client(server.address) as client:
        assert version(client) == "1.0"
        pid = server.process.pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        package(store, "tiny", TINY, version="1.1")
        until(lambda: _says(server, "the model store could not be loaded (OSError: "))
        assert version(client) == "1.0"
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        until(lambda: version(client) == "1.1")
        assert server.stop() == 0


def _says(server: Server, words: str) -> bool:
    return any(words in line for line in server.logged)
