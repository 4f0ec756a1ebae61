"""How far a job is, on a terminal, in a log and for Prometheus."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from cutaway.contract.errors import CutawayError
from cutaway.jobs import progress, run
from cutaway.server.observability.prometheus import metrics_endpoint
from cutaway.server.processes import environment
from tests.support.jobs import digits, digits_job
from tests.support.killed_job import begun, ended, job_file


@pytest.mark.slow
def test_lines_where_there_is_no_terminal(store: Path, tmp_path: Path) -> None:
    """A log has plain lines: how much there is to do, how it goes, what was found; no colours and no bars."""
    job = job_file(tmp_path, store, 40)
    status, first, err = ended(begun(job))
    assert (status, err) == (0, "")
    lines = first.splitlines()
    assert lines[0] == "40 rows"
    assert re.fullmatch(r"40 of 40 rows, \d+ rows/s, 0 s left; .*saliency 40 AGREES.*", lines[1])
    assert lines[2].startswith(f"done: 40 rows in {tmp_path / 'out'}, in ")
    assert "\x1b" not in first
    _, second, _ = ended(begun(job))
    assert "3 of 3 files were written by an earlier run" in second


@pytest.mark.slow
def test_a_bar_on_a_terminal(store: Path, tmp_path: Path) -> None:
    """A terminal shows rows, rows a second, time left and verdicts."""
    job = job_file(tmp_path, store, 40)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "cutaway.cli", "batch", "run", str(job)]
    environment = {**os.environ, "COLUMNS": "160", "TERM": "xterm"}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen: list[bytes] = []
    reading = threading.Thread(target=lambda: seen.extend(_read(ours)))
    reading.start()
    assert process.wait() == 0
    reading.join()
    os.close(ours)
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(seen).decode())
    assert "40/40" in said
    assert "rows/s" in said
    assert "saliency 40 AGREES" in said
    assert "done: 40 rows" in said


def _read(terminal: int) -> list[bytes]:
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            return parts
        if not part:
            return parts
        parts.append(part)


def test_figures_for_prometheus(store: Path, tmp_path: Path) -> None:
    """While a job runs, and until its figures are let go, rows, bad rows and verdicts can be read over HTTP."""
    rows = digits()
    rows.by_name["digit"] = [12, *rows.by_name["digit"][1:]]
    figures = progress.JobMetrics()
    with metrics_endpoint(figures.registry, "127.0.0.1:0") as address:
        run(digits_job(store, tmp_path / "out", data=rows, target="label"), figures)
        with urllib.request.urlopen(f"http://{address}/metrics") as reply:
            text = reply.read().decode()
    for line in (
        "cutaway_job_rows 40.0",
        "cutaway_job_rows_asked_total 40.0",
        "cutaway_job_rows_written 40.0",
        "cutaway_job_bad_rows 1.0",
        'cutaway_job_verdicts{attribution="saliency",verdict="AGREES"} 39.0',
    ):
        assert line in text.splitlines()


def test_an_address_that_cannot_be_had(tmp_path: Path) -> None:
    """Figures that nobody can read are said to be so, before the job begins."""
    with (
        pytest.raises(CutawayError, match="'nowhere:x' is no HOST:PORT") as refused,
        metrics_endpoint(progress.JobMetrics().registry, "nowhere:x"),
    ):
        pass
    assert refused.value.reason == "INVALID_VALUE"


PATIENT = """
import os
from pathlib import Path

import torch
from torch import nn

from cutaway.adapters import Adapter


class Patient(Adapter):
    def build(self) -> nn.Module:
        told = [os.environ.get(name, "-") for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")]
        Path(__file__).with_name("policy").write_text(" ".join(told))
        torch.manual_seed(0)
        return nn.Linear(2, 2)
"""


@pytest.mark.slow
def test_threads_of_a_job_hardly_spin(tmp_path: Path) -> None:
    """On a machine that others use too, a job's threads hardly burn what they wait for; who says otherwise is heard."""
    (tmp_path / "patient.py").write_text(PATIENT)
    (tmp_path / "rows.jsonl").write_text('{"x": [1.0, 2.0]}\n')
    (tmp_path / "job.yaml").write_text(
        "model: {adapter: 'patient.py:Patient'}\n"
        "data: {path: rows.jsonl}\n"
        "inputs: {input: {column: x, dtype: float32}}\n"
        "output: {folder: out}\n"
    )
    command = [sys.executable, "-m", "cutaway.cli", "batch", "run", str(tmp_path / "job.yaml")]
    without = {name: value for name, value in os.environ.items() if name not in environment.WAITING}
    for variables, policy in (({}, "ACTIVE 5000"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "PASSIVE -")):
        (tmp_path / "out" / "part-00000.parquet").unlink(missing_ok=True)  # or there is nothing to do
        subprocess.run(command, env={**without, **variables}, check=True, capture_output=True)
        assert (tmp_path / "policy").read_text() == policy
