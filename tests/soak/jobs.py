"""Twenty jobs killed at moments that chance chose, and a million rows in steady memory."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from cutaway.jobs import Job, Summary, Watcher, read, run
from tests.support.jobs import alike
from tests.support.killed_job import begun, ended, job_file
from tests.support.serving import Server

KILLS = 20
DIGITS = 360
ROWS = 1_000_000
SHARD_ROWS = 16_384
MOST_GROWTH = 64 << 20
"""Bytes: what an allocator keeps for itself comes and goes."""


def trial(_: Server, store: Path) -> list[str]:
    """A killed job ends as if nothing had been; a long one takes no more memory than a short one."""
    return [*_killed(store), *_long(store)]


def _killed(store: Path) -> list[str]:
    moments = random.Random()
    start = time.monotonic()
    status, _, err = ended(begun(job_file(store, store, DIGITS, "whole")))
    whole_s = time.monotonic() - start
    if status:
        raise AssertionError(err)
    for number in range(KILLS):
        job = job_file(store, store, DIGITS, f"killed-{number}")
        process = begun(job)
        time.sleep(moments.uniform(0, whole_s))
        process.kill()
        process.communicate()
        there = len(list((store / f"killed-{number}").glob("part-*")))
        status, out, err = ended(begun(job))
        if status or (there and f"{there} of" not in out):
            raise AssertionError(f"after a kill with {there} shards on disk: {err or out}")
        alike(read(store / f"killed-{number}"), read(store / "whole"))
    return [f"{KILLS} jobs killed between 0 and {whole_s:.1f} s and run again: every value as in one that was not"]


class Made:
    """Rows that are made when they are read."""

    rows = ROWS
    columns = ("image",)
    fingerprint = "0" * 64

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Any]:
        numbers = np.random.default_rng(start)
        return {"image": numbers.random((stop - start, 1, 8, 8), np.float32)}


class Weighing(Watcher):
    """Notes how much memory this process has after each shard."""

    def __init__(self) -> None:
        self.bytes: list[int] = []

    def on_shard(self, summary: Summary) -> None:
        self.bytes.append(psutil.Process().memory_info().rss)


def _long(store: Path) -> list[str]:
    weighing = Weighing()
    job = Job(
        model={"archive": store / "digits-1.0.mar"},
        data=Made(),
        inputs={"image": {"column": "image"}},
        request={"attributions": [{"method": "saliency"}]},
        output={"folder": store / "long", "shard_rows": SHARD_ROWS},
        engine={"kind": "local", "batch": 1024},
    )
    summary = run(job, weighing)
    quarter = len(weighing.bytes) // 4
    growth = max(weighing.bytes[-quarter:]) - max(weighing.bytes[:quarter])  # one shard alone may be a dip
    sizes = [path.stat().st_size for path in (store / "long").glob("part-*")]
    if summary.rows != ROWS or summary.bad or growth > MOST_GROWTH:
        raise AssertionError(f"{summary.rows} rows, {summary.bad} bad, memory grew by {growth >> 20} MiB")
    return [
        f"{ROWS:,} rows in {summary.seconds:.0f} s: memory grew by {growth >> 20} MiB from the first "
        f"quarter to the last, to {max(weighing.bytes) >> 20} MiB; {len(sizes)} files, the largest has "
        f"{max(sizes) >> 20} MiB"
    ]
