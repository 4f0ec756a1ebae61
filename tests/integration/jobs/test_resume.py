"""A job that ends too soon: killed, stopped, out of room. Run again, it goes on; nothing is lost, nothing twice."""

from __future__ import annotations

import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cutaway.jobs import read
from tests.support.jobs import alike
from tests.support.killed_job import begun, ended, job_file, until_written

ROWS = 160


@pytest.fixture(scope="module")
def uninterrupted(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job that ran to its end, in a process of its own."""
    directory = tmp_path_factory.mktemp("uninterrupted")
    status, out, err = ended(begun(job_file(directory, store, ROWS)))
    assert status == 0, err
    assert "done: 160 rows" in out
    return directory / "out"


@pytest.mark.slow
def test_killed_anywhere_it_ends_the_same(store: Path, uninterrupted: Path, tmp_path: Path) -> None:
    """Killed, killed again and killed once more, at moments that nobody chose, the job ends with the very values."""
    moments = random.Random(7)
    job = job_file(tmp_path, store, ROWS)
    there = 0
    for parts in (1, 4, 7):
        process = begun(job)
        until_written(process, tmp_path / "out", parts)
        while process.poll() is None and moments.random() < 0.5:
            until_written(process, tmp_path / "out", parts + 1)
        process.kill()
        assert process.wait() in (-signal.SIGKILL, 0)
        process.communicate()
        now = len(list((tmp_path / "out").glob("part-*")))
        assert now >= there
        there = now
    status, out, err = ended(begun(job))
    assert status == 0, err
    assert f"{there} of 10 files were written by an earlier run" in out
    alike(read(tmp_path / "out"), read(uninterrupted))
    np.testing.assert_array_equal(read(tmp_path / "out")["row"], np.arange(ROWS))
    assert not list((tmp_path / "out").glob(".*.tmp"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_says_how_to_go_on(store: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C, or a scheduler's word, ends the job with status 3 and advice; what is on disk is whole, and no row is
    taken for a bad one."""
    job = job_file(tmp_path, store, ROWS)
    process = begun(job)
    until_written(process, tmp_path / "out", 1)
    process.send_signal(number)
    status, _, err = ended(process)
    assert status == 3
    assert err == "JOB_INTERRUPTED: interrupted; the same command continues the job\n"
    results = read(tmp_path / "out")
    assert not results.complete
    assert results["error"].tolist() == [None] * results.rows


@pytest.mark.slow
def test_no_room_is_an_interruption(store: Path, tmp_path: Path) -> None:
    """Where a shard cannot be written the job ends with status 3 and leaves no torn file; with room, it goes on."""
    job = job_file(tmp_path, store, ROWS, shard_rows=64, request={"captures": [{"layer": "conv*"}]})
    command = [sys.executable, "-m", "cutaway.cli", "batch", "run", str(job)]

    def narrow() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))

    cramped = subprocess.run(command, capture_output=True, text=True, preexec_fn=narrow)
    assert cramped.returncode == 3, cramped.stderr
    assert cramped.stderr.startswith("JOB_INTERRUPTED [output.folder]: ")
    assert [path.name for path in (tmp_path / "out").glob("[!.]*")] == ["_manifest.json"]
    assert not list((tmp_path / "out").glob(".*.tmp"))
    status, _, err = ended(begun(job))
    assert status == 0, err
    assert read(tmp_path / "out").rows == ROWS


@pytest.mark.slow
def test_exit_statuses(store: Path, tmp_path: Path) -> None:
    """0 is done, 1 more bad rows than allowed, 2 a job at fault; a script need not read what is said."""
    limited = job_file(tmp_path, store, 40, "limited", target={"class_index": 3}, max_bad_rows=0)
    wrong = job_file(tmp_path, store, 40, "wrong", target={"class_index": 33})
    strict = job_file(tmp_path, store, 40, "strict", label={"column": "name"}, target="label", max_bad_rows=0)
    running = [begun(job) for job in (limited, wrong, strict)]
    (done, out, _), (fault, _, said), (nameless, _, why) = map(ended, running)
    assert (done, fault, nameless) == (0, 2, 2)
    assert "done: 40 rows" in out
    assert said.startswith("TARGET_RANGE")
    assert "the model has no class 'digit-" in why
