"""Rows about batch jobs: all 1,797 digits, each with three explanations."""

from __future__ import annotations

from bench.pipe import Pipe
from bench.row import Bench, Found
from bench.rows.loads import over
from cutaway.server.processes.environment import WAITING

_PART = "bench.parts.jobs"


def local(bench: Bench) -> Found:
    """Measures a job in one process, files included, against a Captum loop; aside, the job with checks."""
    with Pipe(_PART, *_files(bench), "local", variables=WAITING) as pipe:
        # Speed is the inverse of time: the loop's time divided by the job's.
        return over(
            {
                "loop": lambda: pipe.ask("by hand"),
                "job": lambda: pipe.ask("off"),
                "checked": lambda: pipe.ask("same_pass"),
            },
            bench.rounds,
            "s",
        )


def ray(bench: Bench) -> Found:
    """Measures the same job on two workers of a running Ray cluster against one process with all cores."""
    files = _files(bench)
    with (
        Pipe(_PART, *files, "local", variables=WAITING) as alone,
        Pipe(_PART, *files, "ray", variables=WAITING) as cluster,
    ):
        return over(
            {"local": lambda: alone.ask("same_pass"), "ray": lambda: cluster.ask("same_pass")}, bench.rounds, "s"
        )


def _files(bench: Bench) -> tuple[str, str]:
    return str(bench.store.of("digits") / "digits-1.0.mar"), str(bench.store.weights())
