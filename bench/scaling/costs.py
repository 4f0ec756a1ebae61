"""Measures what a call costs in each process, and the curve that the simulation has to meet."""

from __future__ import annotations

import math
import time
import urllib.request
from bisect import bisect
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
import psutil
from prometheus_client.parser import text_string_to_metric_families

from bench import requests, servers
from bench.pipe import Pipe
from bench.requests import payload
from bench.rows.loads import Load, inspect_door
from bench.servers import Store

LEVELS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of callers."""

CALIBRATED = (1, 4, 8, 16, 64)
"""The levels from which costs are fitted; the others only check the simulation."""

WINDOW_S = 3.0
METRICS = "127.0.0.1:19464"


class Cost(NamedTuple):
    """CPU seconds of one process: for a turn of n calls, ``turn`` + n * ``call``."""

    turn: float
    call: float

    def of(self, calls: float) -> float:
        """Returns the cost of a turn."""
        return self.turn + calls * self.call

    def each(self, calls: float) -> float:
        """Returns the cost of one call in a turn of ``calls``."""
        return self.of(calls) / calls


class TurnCosts(NamedTuple):
    """CPU seconds of a worker for turns of some ``sizes``, which rise; between them, and beyond, lines. A turn of two
    costs more than half of one of four: torch takes other kernels for a batch than for a row."""

    sizes: tuple[float, ...]
    seconds: tuple[float, ...]

    def of(self, calls: float) -> float:
        """Returns the cost of a turn."""
        right = min(max(1, bisect(self.sizes, calls)), len(self.sizes) - 1)
        (left_size, left), (size, seconds) = zip(self.sizes[right - 1 : right + 1], self.seconds[right - 1 : right + 1])
        return left + (calls - left_size) * (seconds - left) / (size - left_size)

    def each(self, calls: float) -> float:
        """Returns the cost of one call in a turn of ``calls``."""
        return self.of(calls) / calls


class Level(NamedTuple):
    """What was measured with some number of callers, medians over rounds.

    Attributes:
        callers: how many.
        rate: calls per second.
        latency: median, in seconds.
        spread: standard deviation of the latencies by their mean, without the slowest hundredth.
        turn: calls in a turn, on average.
        cpu: CPU seconds of a call by process.
        others: CPUs that other processes of the machine used meanwhile.
    """

    callers: int
    rate: float
    latency: float
    spread: float
    turn: float
    cpu: dict[str, float]
    others: float


class Costs(NamedTuple):
    """What calls cost.

    Attributes:
        loader, gateway: CPU of two processes.
        worker: that of the third.
        idle: seconds of a lone call in which no process works for it; below zero, the CPU seconds that processes spend
            on it after they have passed it on.
        spread: standard deviation of the seconds of one piece of work of a process, by their mean.
        request_bytes, reply_bytes: on the network.
        worker_bytes: memory of a worker that nobody shares.
        start: seconds until a worker answers.
    """

    loader: Cost
    gateway: Cost
    worker: TurnCosts
    idle: float
    spread: float
    request_bytes: int
    reply_bytes: int
    worker_bytes: int
    start: float

    @property
    def pieces(self) -> tuple[float, ...]:
        """The pieces of work of a lone call, one after the other: CPU seconds."""
        loader, gateway = self.loader, self.gateway
        way = (loader.call / 2, gateway.call / 2, gateway.turn)
        return (*way, self.worker.of(1), gateway.call / 2, loader.call / 2 + loader.turn)


class Measured(NamedTuple):
    """Costs, and the curve from which they were read."""

    costs: Costs
    levels: list[Level]


def measure(store: Store, rounds: int) -> Measured:
    """Measures all levels in turn, ``rounds`` times, with captures and gradients on the digits network."""
    asked = payload(requests.inside())
    started = time.perf_counter()
    with (
        servers.cutaway(store.of("digits"), "processes", CUTAWAY_METRICS_ADDRESS=METRICS) as server,
        Pipe("bench.parts.load") as pipe,
    ):
        start = time.perf_counter() - started
        load, door = Load(pipe), inspect_door(server.address)
        reply_bytes = load.ask(door, [asked], 32, WINDOW_S)["bytes"]  # nothing is new any more
        processes = _processes(server.pid, pipe.pid)
        found: dict[int, list[Level]] = {callers: [] for callers in LEVELS}
        for _ in range(rounds):
            for callers in LEVELS:
                found[callers].append(_level(load, door, asked, callers, processes))
        worker_bytes = processes["worker"].memory_full_info().uss
    levels = [_middle(each) for each in found.values()]
    used = [level for level in levels if level.callers in CALIBRATED]
    loader, gateway = (_fit(used, name) for name in ("loader", "gateway"))
    worker = TurnCosts(*zip(*((level.turn, level.turn * level.cpu["worker"]) for level in used)))
    idle = levels[0].latency - sum(levels[0].cpu.values())
    size = len(asked) * 3 // 4  # base64
    costs = Costs(loader, gateway, worker, idle, 0.0, size, reply_bytes, worker_bytes, start)
    independent = math.hypot(*costs.pieces) / sum(costs.pieces)  # what is left of the spread in their sum
    return Measured(costs._replace(spread=levels[0].spread / independent), levels)


def _processes(gateway: int, loader: int) -> dict[str, psutil.Process]:
    """Returns the processes of a call. The worker is the last of those that the gateway started one by the other."""
    *_, worker = psutil.Process(gateway).children(recursive=True)
    return {"loader": psutil.Process(loader), "gateway": psutil.Process(gateway), "worker": worker}


def _level(load: Load, door: object, asked: str, callers: int, processes: dict[str, psutil.Process]) -> Level:
    cpu, turns, busy = _cpu(processes), _turns(), sum(psutil.cpu_times()[:3])
    found = load.ask(door, [asked], callers, WINDOW_S)  # type: ignore[arg-type]
    calls, number = (after - before for before, after in zip(turns, _turns()))
    used = {name: after - cpu[name] for name, after in _cpu(processes).items()}
    others = (sum(psutil.cpu_times()[:3]) - busy - sum(used.values())) / WINDOW_S
    each = {name: seconds / calls for name, seconds in used.items()}
    latencies = np.sort(found["latencies"])
    usual = latencies[: int(0.99 * len(latencies))]
    spread = float(usual.std() / usual.mean())
    return Level(callers, found["rate"], float(median(latencies)), spread, calls / number, each, others)


def _cpu(processes: dict[str, psutil.Process]) -> dict[str, float]:
    return {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}


def _turns() -> tuple[float, float]:
    """Returns the number of calls so far, and that of their turns."""
    with urllib.request.urlopen(f"http://{METRICS}/metrics") as page:
        text = page.read().decode()
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        if family.name == "cutaway_batch_size"
        for sample in family.samples
    }
    return samples.get("cutaway_batch_size_sum", 0.0), samples.get("cutaway_batch_size_count", 0.0)


def _middle(rounds: Sequence[Level]) -> Level:
    cpu = {name: median(each.cpu[name] for each in rounds) for name in rounds[0].cpu}
    rate, latency, spread, turn, others = (
        median(getattr(each, name) for each in rounds) for name in ("rate", "latency", "spread", "turn", "others")
    )
    return Level(rounds[0].callers, rate, latency, spread, turn, cpu, others)


def _fit(levels: Sequence[Level], process: str) -> Cost:
    """Fits the CPU seconds of a call by a share of its turn and its own; relative errors count alike."""
    each = np.array([level.cpu[process] for level in levels])
    columns = np.array([[1 / level.turn, 1.0] for level in levels])
    (turn, call), *_ = np.linalg.lstsq(columns / each[:, None], np.ones(len(each)), rcond=None)
    return Cost(max(0.0, float(turn)), max(0.0, float(call)))
