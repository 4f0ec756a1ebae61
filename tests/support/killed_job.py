"""A job in a process of its own, killed whenever one likes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.jobs import digits_file, digits_words


def job_file(directory: Path, store: Path, rows: int, folder: str = "out", shard_rows: int = 16, **more: Any) -> Path:
    """A job.yaml over digits in ``directory``, which writes into ``folder`` there."""
    if not (directory / "digits.parquet").exists():
        digits_file(directory / "digits.parquet", rows)
    words = digits_words(store, Path(folder), data={"path": "digits.parquet"}) | {
        "inputs": {"image": {"column": "pixels", "shape": [1, 8, 8]}},
        "model": {"archive": str(store / "digits-1.0.mar")},
        "output": {"folder": folder, "shard_rows": shard_rows},
    }
    path = directory / f"{folder}.yaml"
    path.write_text(json.dumps(words | more))
    return path


def begun(job: Path) -> subprocess.Popen[str]:
    """``cutaway batch run`` as a person runs it."""
    command = [sys.executable, "-m", "cutaway.cli", "batch", "run", str(job)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until_written(process: subprocess.Popen[str], folder: Path, parts: int) -> None:
    """Wait until so many shards are on disk, or the process has ended."""
    while process.poll() is None and len(list(folder.glob("part-*"))) < parts:
        time.sleep(0.002)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its exit status, and what it said to standard output and error."""
    out, err = process.communicate()
    return process.returncode, out, err
