"""Sockets fit into the directories made for them, wherever temporary files go."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest

from cutaway.worker_protocol.socket_directory import scratch_directory

TORCHSERVE = ".ts.sock.65535"


@pytest.mark.parametrize("length", [*range(60, 84), 120])
def test_a_socket_fits_wherever_temporary_files_go(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the path of the temporary files is, TorchServe's own socket can be bound; short ones are kept to."""
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        parent = f"{short}/".ljust(length, "x")
        Path(parent).mkdir()
        monkeypatch.setattr(tempfile, "tempdir", parent)
        with scratch_directory() as directory, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{directory}/{TORCHSERVE}")
            assert Path(directory).stat().st_mode & 0o777 == 0o700
            assert (Path(directory).parent == Path(parent)) == (length <= 71)
        assert not Path(directory).exists()
