"""Run the benchmarks and show them: ``python -m bench [ROUNDS]``."""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import warnings
from pathlib import Path
from statistics import median

import captum
import torch
from rich.console import Console
from rich.table import Table

from bench.checks import Row, rows
from bench.models import models

SAME_PASS_BOUND = 1.25
INDEPENDENT_BOUND = 2.2
"""What a check may cost, on the median over methods, as a multiple of the attribution alone."""


def main() -> None:
    """Measure, and exit with status 1 where a bound is not kept."""
    parser = argparse.ArgumentParser(prog="bench", description="Ratios of things that run in turn.")
    parser.add_argument("rounds", type=int, nargs="?", default=9)
    rounds = parser.parse_args().rounds
    warnings.filterwarnings("ignore", module="captum")
    console = Console()
    console.print(
        f"torch {torch.__version__}, captum {captum.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, {rounds} rounds"
    )
    with tempfile.TemporaryDirectory() as directory:
        found = [row for model in models(Path(directory)) for row in rows(model, rounds)]
    console.print(_table(found))
    same = median(row.same_pass.middle for row in found if row.same_pass)
    independent = median(row.independent.middle for row in found)
    kept = same <= SAME_PASS_BOUND and independent <= INDEPENDENT_BOUND
    console.print(f"median: same_pass {same:.2f} (at most {SAME_PASS_BOUND}), independent {independent:.2f} "
                  f"(at most {INDEPENDENT_BOUND}): {'kept' if kept else 'NOT KEPT'}")  # fmt: skip
    raise SystemExit(0 if kept else 1)


def _table(found: list[Row]) -> Table:
    table = Table(
        "model", "method", "same_pass", "independent", title="a check's cost: attribution and check / attribution alone"
    )
    for row in found:
        table.add_row(row.model, row.method, "-" if row.same_pass is None else str(row.same_pass), str(row.independent))
    return table


if __name__ == "__main__":
    main()
