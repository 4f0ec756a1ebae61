"""Latency against request size, and time by stage: for the plot and tables of docs/performance.md."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import matplotlib

from bench import servers
from bench.pipe import Pipe
from bench.requests import explained, inside, payload, resnet
from bench.row import Bench
from bench.rows.loads import Load, inspect_door

COUNT = 7
"""Calls per point; the median is reported."""

SWEEPS: dict[str, tuple[str, str, Sequence[int]]] = {
    "captures": ("inside", "captures", (0, 1, 3, 5, 7, 9)),
    "rows in the request": ("inside", "rows", (1, 4, 16, 64, 256)),
    "steps of integrated gradients": ("explained", "steps", (8, 16, 32, 64, 128, 256)),
    "MiB of one capture": ("wall", "mebibytes", (1, 2, 4, 8, 16, 32, 64)),
}
"""Each sweep: the request builder, its argument, and the values."""

DIVISORS = (8, 4, 2, 1)
"""Divisors of ResNet-50's channel counts."""

_SIZE = "ResNet's channels, as parts of eight"
STAGED = {"digits, 3 captures + gradient": ("inside", {}), "ResNet-50, 3 captures + gradient": ("resnet", {}),
          "digits, integrated gradients, checked": ("explained", {"check": "same_pass"})}  # fmt: skip
BUSY = 0.7
"""Planned utilisation of a worker; near 1 the queue grows without bound."""

WANTED = 100
"""Load of the capacity table, in calls per second."""


class Grown(NamedTuple):
    """One sweep: milliseconds at the client by the value that grows."""

    asked: list[int]
    milliseconds: list[float]


def grown(bench: Bench) -> dict[str, Grown]:
    """Measures every sweep through gateway and TorchServe."""
    found = {}
    wall, digits = bench.store.of("wall", mebibytes="64"), bench.store.of("digits")
    for model, store in {"digits": digits, "wall": wall}.items():
        with servers.cutaway(store) as server, Pipe("bench.parts.client", server.address) as client:
            for name, (question, argument, values) in SWEEPS.items():
                if (question == "wall") == (model == "wall"):
                    waits = [_wait(client, question, {argument: value}) for value in values]
                    found[name] = Grown(list(values), waits)
    found[_SIZE] = Grown([8 // divisor for divisor in DIVISORS], list(_by_size(bench)))
    return found


def _by_size(bench: Bench) -> Iterator[float]:
    for divisor in DIVISORS:
        store = bench.store.of("resnet", divisor=str(divisor))
        with servers.cutaway(store) as server, Pipe("bench.parts.client", server.address) as client:
            yield _wait(client, "resnet", {})


def _wait(client: Pipe, question: str, given: dict[str, int]) -> float:
    client.ask({"question": question, "given": given, "count": 2})
    waits: list[float] = client.ask({"question": question, "given": given, "count": COUNT})
    return median(waits) * 1000


def plot(found: dict[str, Grown], path: Path) -> None:
    """Draws all sweeps on log-log axes, where slope 1 means proportional cost."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(found), figsize=(4 * len(found), 3.4), layout="constrained")
    for axis, (name, sweep) in zip(axes, found.items()):
        axis.plot(sweep.asked, sweep.milliseconds, "o-")
        axis.set(xlabel=name, ylim=(0, None) if 0 in sweep.asked else None)
        if 0 not in sweep.asked:
            axis.set_xscale("log", base=2)
            axis.set_yscale("log", base=2)
    axes[0].set_ylabel("milliseconds at the client, median")
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def growth_table(found: dict[str, Grown]) -> str:
    """Returns the values of the plot as a Markdown table."""
    lines = ["| what grows | milliseconds at the client |", "|---|---|"]
    for name, sweep in found.items():
        points = ", ".join(f"{asked}: {wait:.3g}" for asked, wait in zip(sweep.asked, sweep.milliseconds))
        lines.append(f"| {name} | {points} |")
    return "\n".join(lines)


def staged(bench: Bench) -> dict[str, dict[str, float]]:
    """Measures the median milliseconds of each stage, for each reported request."""
    with (
        servers.cutaway(bench.store.of("digits", "resnet")) as server,
        Pipe("bench.parts.client", server.address) as client,
    ):
        return {name: _stages(client, question, given) for name, (question, given) in STAGED.items()}


def _stages(client: Pipe, question: str, given: dict[str, Any]) -> dict[str, float]:
    calls = client.ask({"question": question, "given": given, "count": COUNT, "stages": True})[1:]
    return {stage: median(call[stage] for call in calls) for stage in calls[0]}


def stage_table(found: dict[str, dict[str, float]]) -> str:
    """Returns the stage table; the remainder is transport and decoding in the client."""
    stages = [name for name in next(iter(found.values())) if name != "whole_ms"]
    names = [name.removesuffix("_ms") for name in stages]
    lines = [f"| question, ms | {' | '.join(names)} | the rest | whole |", "|---" * (len(stages) + 3) + "|"]
    for question, times in found.items():
        rest = times["whole_ms"] - sum(times[name] for name in stages)
        cells = [f"{times[name]:.2f}" for name in stages]
        lines.append(f"| {question} | {' | '.join(cells)} | {rest:.2f} | {times['whole_ms']:.2f} |")
    return "\n".join(lines)


def capacity(bench: Bench) -> dict[str, float]:
    """Measures the calls per second of one worker under saturating load."""
    asked = {"inside": (inside(), 32), "resnet": (resnet(), 4), "explained": (explained("same_pass"), 8)}
    with ExitStack() as stack:
        server = stack.enter_context(servers.cutaway(bench.store.of("digits", "resnet")))
        load = Load(stack.enter_context(Pipe("bench.parts.load")))
        door = inspect_door(server.address)
        found = {}
        for name, (question, _) in STAGED.items():
            of, callers = asked[question]
            load.ask(door, [payload(of)], callers)
            found[name] = median(load.ask(door, [payload(of)], callers)["rate"] for _ in range(bench.rounds))
        return found


def capacity_table(found: dict[str, float]) -> str:
    """Returns the capacity table: workers needed for a given load."""
    lines = [f"| question | calls/s of one worker | workers for {WANTED} calls/s |", "|---|---|---|"]
    for name, rate in found.items():
        lines.append(f"| {name} | {rate:.3g} | {workers(WANTED, rate)} |")
    return "\n".join(lines)


def workers(wanted: float, rate: float) -> int:
    """Returns how many workers of ``rate`` calls/s serve ``wanted`` calls/s at utilisation `BUSY`."""
    return math.ceil(wanted / (rate * BUSY))
