"""What a killed `cutaway serve` leaves on the disk, the next one deletes."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import cutaway as ca
from tests.conftest import ADAPTERS
from tests.support.serving import Server, package, serving
from tests.support.waiting import until

X = {"x": np.ones((1, 3), np.float32)}


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where the servers of a test have their temporary files; short enough for sockets. PyTorch's cache, which every
    process that imports ``torch._dynamo`` makes and none deletes, is elsewhere."""
    directory = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    yield directory
    shutil.rmtree(directory)


def kill(server: Server) -> None:
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["embedded", "torchserve", "processes"])
def test_the_next_start_deletes_what_a_killed_one_left(tmp_path: Path, scratch: Path, engine: str) -> None:
    """Unpacked archives and all; and its own when it ends in order."""
    store = tmp_path / "store"
    package(store, "tiny", f"{ADAPTERS / 'tiny_adapter.py'}:Tiny")
    with serving(store, tmp_path / "killed", f"--engine={engine}") as server:
        kill(server)
        left = set(scratch.iterdir())
        assert left
    with serving(store, tmp_path / "next", f"--engine={engine}") as server, ca.Client(server.address) as client:
        until(lambda: not any(path.exists() for path in left))
        client.inspect("tiny", X, stream=True)
    assert not any(scratch.iterdir())
