"""What is known of a process that ended while its model loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cutaway.contract.results import ModelName
from cutaway.server import load_records

NAME = ModelName("tiny", "1.0")

_LOADING = """
import os, signal, sys
from pathlib import Path
from cutaway.contract.results import ModelName
from cutaway.server.load_records import recorded

print("before")
with recorded(Path(sys.argv[1]), ModelName("tiny", "1.0")):
    print("one of Python")
    os.write(2, b"one of C\\n")
    exec(sys.argv[2])
print("after")
"""


def loading(directory: Path, code: str) -> subprocess.CompletedProcess[str]:
    """A process that runs ``code`` while its model loads, and has ended."""
    command = [sys.executable, "-c", _LOADING, str(directory), code]
    return subprocess.run(command, capture_output=True, text=True)


def test_what_a_process_prints_is_kept_until_its_model_has_loaded(tmp_path: Path) -> None:
    """Then it goes where it would have gone, and nothing is left."""
    done = loading(tmp_path, "pass")
    assert done.returncode == 0
    assert done.stdout == "before\nafter\n"
    assert sorted(done.stderr.splitlines()) == ["one of C", "one of Python"]
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_ends_no_load(tmp_path: Path) -> None:
    """The model has loaded; what was printed is lost."""
    with open("/dev/full", "wb", buffering=0) as full:
        command = [sys.executable, "-c", _LOADING, str(tmp_path), "print('loaded')"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, text=True)
    assert done.stdout == "before\nafter\n"
    load_records.note(tmp_path / "gone", NAME, load_records.LOADED, "1 GiB")


def test_an_error_is_no_death(tmp_path: Path) -> None:
    """Whoever raises one says why."""
    assert "ZeroDivisionError" in loading(tmp_path, "1 / 0").stderr
    assert load_records.deaths(tmp_path, NAME) == []


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL"),
        ("os._exit(7)", "ended with exit status 7"),
        ("import ctypes; ctypes.string_at(0)", "Fatal Python error: Segmentation fault"),
        ("os.abort()", "Fatal Python error: Aborted"),
    ],
)
def test_a_death_is_told(tmp_path: Path, code: str, words: str) -> None:
    """With how it ended, where its parent knows, and what was printed last; of this model only."""
    done = loading(tmp_path, f"sys.stdout.flush(); {code}")
    (record,) = tmp_path.iterdir()
    (unknown,) = load_records.deaths(tmp_path, NAME)
    assert "one of C" in load_records.note_end(tmp_path, int(record.name.partition("=")[0]), done.returncode)
    (told,) = load_records.deaths(tmp_path, NAME)
    assert words in told
    assert "one of C" in told
    assert told != unknown
    for other in (ModelName("tiny", "1.1"), ModelName("a-tiny", "1.0"), ModelName("tiny", "1.0.0")):
        assert load_records.deaths(tmp_path, other) == []
    load_records.forget(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_records_do_not_pile_up(tmp_path: Path) -> None:
    """A model may die for a year."""
    for pid in range(1, 6):
        (tmp_path / f"{1_000_000_000 + pid}=tiny=1.0.loading").touch()
    loading(tmp_path, "os._exit(1)")
    assert len(load_records.deaths(tmp_path, NAME)) == load_records.MOST_DEATHS + 1
