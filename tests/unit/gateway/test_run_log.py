"""The log of processes that a gateway starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cutaway as ca
from cutaway.server.processes import process_group
from cutaway.server.processes.process_group import RunLog
from tests.support.waiting import until

_WRITER = """
import os
for number in range(10_000_000):
    os.write(1, f"{number}\\n".encode())
"""


def test_a_large_log_is_moved_while_processes_write_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their lines go on in the same file, three older files are kept, and no line stands twice or in parts."""
    monkeypatch.setattr(process_group, "_LARGEST_BYTES", 100_000)
    log = RunLog(tmp_path / "workers.log")
    older = [tmp_path / f"workers.log.{number}" for number in (3, 2, 1)]

    def moved() -> bool:
        log.rotate()
        return older[0].exists()

    with log.path.open("ab") as output:
        with subprocess.Popen([sys.executable, "-c", _WRITER], stdout=output) as writer:
            until(moved, every_s=0.0)
            writer.kill()
        output.write(b"10000000\n")
    assert sorted(tmp_path.iterdir()) == sorted([*older, log.path])
    kept = [int(line) for path in older for line in path.read_text().splitlines()]
    kept += [int(line) for line in log.path.read_text().splitlines()]
    assert kept == sorted(set(kept))
    assert kept[-1] == 10_000_000
    log.path.write_bytes(b"line\n" * 100_000)
    log.rotate()
    assert log.path.stat().st_size < 100_000


def test_a_small_log_stays(tmp_path: Path) -> None:
    """It is moved by its size alone."""
    log = RunLog(tmp_path / "workers.log")
    log.path.write_text("one line\n")
    log.rotate()
    assert [path.name for path in tmp_path.iterdir()] == ["workers.log"]


@pytest.mark.parametrize("place", ["file/logs", "/proc/nowhere/logs", "directory.log"])
def test_a_log_that_cannot_be_written_is_told(place: str, tmp_path: Path) -> None:
    """With the system's words and the setting."""
    (tmp_path / "file").touch()
    (tmp_path / "directory.log").mkdir()
    with pytest.raises(
        ca.Unavailable, match=r"cannot be written .*: set CUTAWAY_LOG_DIR to another directory"
    ) as caught:
        RunLog(tmp_path / place)
    assert caught.value.field == "CUTAWAY_LOG_DIR"


def test_a_log_that_was_deleted_has_no_tail(tmp_path: Path) -> None:
    """An operator may do that; the end of the processes does not fail for it."""
    log = RunLog(tmp_path / "workers.log")
    log.path.unlink()
    log.close()
    assert log.tail() == ""
