"""Scratch directories: sockets fit into them, and those of processes that were killed are deleted later."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cutaway.server.lifecycle.replica_set import RayWorkers
from cutaway.server.worker_protocol import ScratchDirectory, delete_abandoned

TORCHSERVE = ".ts.sock.65535"


@pytest.mark.parametrize("length", [*range(60, 84), 120])
def test_a_socket_fits_wherever_temporary_files_go(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the path of the temporary files is, TorchServe's own socket can be bound; short ones are kept to."""
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        parent = f"{short}/".ljust(length, "x")
        Path(parent).mkdir()
        monkeypatch.setattr(tempfile, "tempdir", parent)
        with ScratchDirectory() as directory, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{directory}/{TORCHSERVE}")
            assert Path(directory).stat().st_mode & 0o777 == 0o700
            assert (Path(directory).parent == Path(parent)) == (length <= 71)
        assert not Path(directory).exists()


def test_a_socket_of_ray_fits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its names are longer; directories in the other place are found again by `delete_abandoned`."""
    name = "session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store"
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        for length in range(20, 60):
            parent = f"{short}/".ljust(length, "x")
            Path(parent).mkdir(exist_ok=True)
            monkeypatch.setattr(tempfile, "tempdir", parent)
            with ScratchDirectory(RayWorkers.longest_name) as directory, socket.socket(socket.AF_UNIX) as listener:
                path = Path(directory, name)
                path.parent.mkdir(parents=True)
                listener.bind(str(path))
                delete_abandoned()
                assert path.exists()


OWNER = """
import time
from pathlib import Path
from cutaway.server.worker_protocol import ScratchDirectory

with ScratchDirectory() as directory:
    (Path(directory) / "content").mkdir()
    print(directory, flush=True)
    time.sleep(600)
"""


def test_only_directories_of_ended_owners_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of a running owner, nor one without a lock, nor a link to an abandoned one, nor what is not ours."""
    parent = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(parent))
    monkeypatch.setenv("TMPDIR", str(parent))
    stays = parent / "cutaway-unlocked"
    (stays / "content").mkdir(parents=True)
    (parent / "cutaway-file").touch()
    owners = [subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        killed, running = (Path(owner.stdout.readline().strip()) for owner in owners if owner.stdout)
        owners[0].kill()
        owners[0].wait()
        killed.rename(tmp_path / "elsewhere")
        killed.symlink_to(tmp_path / "elsewhere")
        delete_abandoned()
        assert killed.is_symlink()
        assert (tmp_path / "elsewhere" / "content").exists()

        killed.unlink()
        (tmp_path / "elsewhere").rename(killed)
        with ScratchDirectory() as ours:
            delete_abandoned()
            assert {path.name for path in parent.iterdir()} == {
                *("cutaway-unlocked", "cutaway-file", running.name, Path(ours).name)
            }
        assert (running / "content").exists()
        assert (stays / "content").exists()
    finally:
        for owner in owners:
            owner.kill()
            owner.communicate()
    delete_abandoned()
    assert not running.exists()
    shutil.rmtree(parent)
