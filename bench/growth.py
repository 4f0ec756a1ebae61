"""What a call costs as it asks for more, and where its time goes: for the plots and tables of docs/performance.md."""

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
from bench.questions import explained, inside, payload, resnet
from bench.row import Bench
from bench.rows.loads import Load, inspect_door

COUNT = 7
"""Calls for each point; their median counts."""

SWEEPS: dict[str, tuple[str, str, Sequence[int]]] = {
    "captures": ("inside", "captures", (0, 1, 3, 5, 7, 9)),
    "rows in the request": ("inside", "rows", (1, 4, 16, 64, 256)),
    "steps of integrated gradients": ("explained", "steps", (8, 16, 32, 64, 128, 256)),
    "MiB of one capture": ("wall", "mebibytes", (1, 2, 4, 8, 16, 32, 64)),
}
"""What grows: the question, its argument, and the values."""

DIVISORS = (8, 4, 2, 1)
"""Of ResNet-50's channels."""

_SIZE = "ResNet's channels, as parts of eight"
STAGED = {"digits, 3 captures + gradient": ("inside", {}), "ResNet-50, 3 captures + gradient": ("resnet", {}),
          "digits, integrated gradients, checked": ("explained", {"check": "same_pass"})}  # fmt: skip
BUSY = 0.7
"""How much of a worker's time is planned for: a queue grows without bound near 1."""

WANTED = 100
"""Calls a second, in the capacity table."""


class Grown(NamedTuple):
    """One sweep: milliseconds at the client by what was asked."""

    asked: list[int]
    milliseconds: list[float]


def grown(bench: Bench) -> dict[str, Grown]:
    """Every sweep, through front door and TorchServe."""
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
    """All sweeps in one picture, on axes where a straight line of slope one is proportional."""
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
    """The numbers of the plot."""
    lines = ["| what grows | milliseconds at the client |", "|---|---|"]
    for name, sweep in found.items():
        points = ", ".join(f"{asked}: {wait:.3g}" for asked, wait in zip(sweep.asked, sweep.milliseconds))
        lines.append(f"| {name} | {points} |")
    return "\n".join(lines)


def staged(bench: Bench) -> dict[str, dict[str, float]]:
    """Median milliseconds by stage, of each question that is told about."""
    with (
        servers.cutaway(bench.store.of("digits", "resnet")) as server,
        Pipe("bench.parts.client", server.address) as client,
    ):
        return {name: _stages(client, question, given) for name, (question, given) in STAGED.items()}


def _stages(client: Pipe, question: str, given: dict[str, Any]) -> dict[str, float]:
    calls = client.ask({"question": question, "given": given, "count": COUNT, "stages": True})[1:]
    return {stage: median(call[stage] for call in calls) for stage in calls[0]}


def stage_table(found: dict[str, dict[str, float]]) -> str:
    """Stages as columns; what no stage accounts for is the way there and back, and the client's own decoding."""
    stages = [name for name in next(iter(found.values())) if name != "whole_ms"]
    names = [name.removesuffix("_ms") for name in stages]
    lines = [f"| question, ms | {' | '.join(names)} | the rest | whole |", "|---" * (len(stages) + 3) + "|"]
    for question, times in found.items():
        rest = times["whole_ms"] - sum(times[name] for name in stages)
        cells = [f"{times[name]:.2f}" for name in stages]
        lines.append(f"| {question} | {' | '.join(cells)} | {rest:.2f} | {times['whole_ms']:.2f} |")
    return "\n".join(lines)


def capacity(bench: Bench) -> dict[str, float]:
    """Calls a second of one worker that never waits for callers."""
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
    """How many workers for so many calls."""
    lines = [f"| question | calls/s of one worker | workers for {WANTED} calls/s |", "|---|---|---|"]
    for name, rate in found.items():
        lines.append(f"| {name} | {rate:.3g} | {workers(WANTED, rate)} |")
    return "\n".join(lines)


def workers(wanted: float, rate: float) -> int:
    """How many workers of ``rate`` calls a second serve ``wanted``, each busy for no more than `BUSY` of its time."""
    return math.ceil(wanted / (rate * BUSY))
