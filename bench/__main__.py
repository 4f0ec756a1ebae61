"""Runs the benchmarks and prints the table: ``python -m bench [ROUNDS] [--real] [--only ROW]``."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path

from rich.console import Console

from bench import growth, report
from bench.pipe import ROOT, CannotRun
from bench.row import Bench, Outcome, Row
from bench.rows import fairness, real, texts
from bench.rows.inside import cuda
from bench.rows.real import Sides
from bench.rows.table import TABLE
from bench.servers import Store
from cutaway.contract.errors import CutawayError

PAGE = ROOT / "docs" / "performance.md"
PICTURE = ROOT / "docs" / "growth.png"

console = Console(highlight=False)


def main() -> None:
    """Runs the selected rows; exits with status 1 if a row misses its bound or cannot run."""
    given = _asked()
    warnings.filterwarnings("ignore", module="captum")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # by an exception, which ends the servers
    console.print(", ".join(f"{name} {value}" for name, value in report.machine().items()))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory, closing(Sides()) as sides:
        store = Store(Path(directory))
        rows = [*real.table(sides), *fairness.table(), *texts.table()] if given.real else TABLE
        outcomes = [run(row, store, given.rounds) for row in chosen(given.only, rows)]
        sides.close()
        console.print(report.screen(outcomes))
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(report.as_json(outcomes, given.rounds), indent=1) + "\n")
        console.print(f"every round: {given.json}")
        if given.write:
            if given.real:
                tables = report.real_tables(outcomes)
            else:
                tables = {"ratios": report.markdown(outcomes), **_tables(Bench(store, given.rounds, "cpu"))}
            PAGE.write_text(report.between(PAGE.read_text("utf-8"), tables), "utf-8")
    raise SystemExit(any(each.verdict != "kept" for each in outcomes))


def _tables(bench: Bench) -> dict[str, str]:
    """Returns the other tables of docs/performance.md, and draws its plot."""
    console.print("growth, stages and capacity")
    found = growth.grown(bench)
    growth.plot(found, PICTURE)
    return {
        "machine": ", ".join(f"{name} {value}" for name, value in report.machine().items()),
        "growth": growth.growth_table(found),
        "stages": growth.stage_table(growth.staged(bench)),
        "capacity": growth.capacity_table(growth.capacity(bench)),
    }


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description="Ratios of things that run in turn.")
    parser.add_argument("rounds", type=int, nargs="?", default=5, help="how often both sides run (default: 5)")
    parser.add_argument("--only", action="append", metavar="ROW", help="rows of this name; may be a glob; repeatable")
    parser.add_argument("--real", action="store_true", help="the rows of networks of real size, in place of the others")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench.json", help="where every round goes")
    parser.add_argument("--write", action="store_true", help="write docs/performance.md's tables and plots")
    return parser.parse_args()


def chosen(only: Sequence[str] | None, rows: Sequence[Row] = TABLE) -> list[Row]:
    """Returns the rows named on the command line, by default all that can run on this machine.

    Raises:
        SystemExit: a name is that of no row.
    """
    if not only:
        return [row for row in rows if row.device == "cpu" or cuda()]
    found = [row for row in rows if any(fnmatchcase(row.name, name) for name in only)]
    if wrong := [name for name in only if not any(fnmatchcase(row.name, name) for row in rows)]:
        raise SystemExit(f"no row is named {', '.join(wrong)}: {', '.join(row.name for row in rows)}")
    return found


def run(row: Row, store: Store, rounds: int) -> Outcome:
    """Measures one row."""
    start = time.perf_counter()
    found, why = None, ""
    try:
        if row.device == "cuda" and not cuda():
            raise CannotRun("no GPU here")
        found = row.measure(Bench(store, rounds, row.device))
    except (CannotRun, CutawayError) as failure:
        why = str(failure)
    outcome = Outcome(row, found, why, time.perf_counter() - start)
    console.print(f"{row.name}: {outcome.value} {outcome.verdict} [dim]{outcome.seconds:.0f} s", soft_wrap=True)
    if found is not None:
        console.print("    " + "; ".join(f"{name} {value}" for name, value in found.aside.items()), style="dim")
    return outcome


if __name__ == "__main__":
    main()
