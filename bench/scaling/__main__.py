"""Measures this machine, simulates it and a fleet, and writes docs/scaling.md: ``python -m bench.scaling [ROUNDS]``."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from rich.console import Console

from bench import report
from bench.pipe import ROOT
from bench.scaling import page
from bench.scaling.burst import KUBERNETES, RAY, burst
from bench.scaling.costs import measure
from bench.scaling.page import ALLOWED, Point
from bench.scaling.simulation import TURN_CALLS, closed_loop
from bench.servers import Store

PAGE, PICTURE = ROOT / "docs" / "scaling.md", ROOT / "docs" / "scaling.png"

_OF_A_POD, _OF_A_GATEWAY = 0.5, 0.09
"""The load before the burst: a share of what one pod can do, and of what one gateway on Ray can do."""

console = Console(highlight=False)


def main() -> None:
    """Exits with status 1 if the simulation is further than `ALLOWED` from what was measured."""
    parser = argparse.ArgumentParser(prog="bench.scaling", description=__doc__)
    parser.add_argument("rounds", type=int, nargs="?", default=3, help="how often each level is measured (default: 3)")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        costs, levels = measure(Store(Path(directory)), parser.parse_args().rounds)
    points = [Point(level, closed_loop(costs, level.callers)) for level in levels]
    gateway, worker = (1 / cost.each(TURN_CALLS) for cost in (costs.gateway, costs.worker))
    rates = {KUBERNETES: _OF_A_POD * min(gateway, worker), RAY: _OF_A_GATEWAY * gateway}
    bursts = {policy.name: (rate, burst(costs, policy, rate)) for policy, rate in rates.items()}
    tables = {
        "machine": ", ".join(f"{name} {value}" for name, value in report.machine().items()),
        "costs": page.cost_table(costs),
        "curve": page.curve_table(points),
        "fleet": page.fleet_table(costs),
        "burst": page.burst_table(bursts),
    }
    for table in tables.values():
        console.print(table, soft_wrap=True)
    PAGE.write_text(report.between(PAGE.read_text("utf-8"), tables), "utf-8")
    page.draw(points, bursts, PICTURE)
    raise SystemExit(any(abs(point.error) > ALLOWED for point in points))


if __name__ == "__main__":
    main()
