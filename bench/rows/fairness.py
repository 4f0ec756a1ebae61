"""Rows about small callers beside one heavy request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median, quantiles
from typing import Any, NamedTuple

import numpy as np

import cutaway as ca
from bench import servers
from bench.pipe import CannotRun, Pipe
from bench.real import MODELS
from bench.requests import Request, payload, real
from bench.row import Bench, Found, Row
from bench.rows.loads import Load, inspect_door
from cutaway.contract.tensors import Array

CALLERS = 10

_WINDOW_S = 12.0
_PAUSE_S = 0.05
_DEADLINE_S = 22.0
"""Seconds that the heavy request runs, until the last small caller has its reply; it has far more passes."""

_BEGUN_S = 1.0


class Heavy(NamedTuple):
    """A request that runs until its deadline.

    Attributes:
        network: of `bench.real`.
        rows: those of the request.
        method: explains them.
    """

    network: str
    rows: int
    method: ca.Attribution

    def request(self, **options: Any) -> Request:
        """Returns a request with its inputs, and ``options``."""
        return self.network, self._inputs(), options

    def _inputs(self) -> dict[str, Array]:
        rows = [MODELS[self.network].rows(seed) for seed in range(self.rows)]
        return {name: np.concatenate([row[name].numpy() for row in rows]) for name in rows[0]}


def _squares() -> Array:
    """Numbers the 6,272 features of a picture: rectangles of four by two pixels."""
    return np.arange(56 * 112, dtype=np.int64).reshape(56, 112).repeat(4, 0).repeat(2, 1)[None, None]


HEAVY = {
    "table": Heavy("dlrm", 500, ca.KernelShap(n_samples=8000, inputs=("numbers",))),
    "resnet50": Heavy(
        "resnet50", 2, ca.FeatureAblation(masks={"image": np.broadcast_to(_squares(), (1, 3, 224, 224))})
    ),
}


def table() -> Iterator[Row]:
    """Yields a row for each engine and each heavy request."""
    for name, heavy in HEAVY.items():
        for engine in servers.ENGINES:
            what = f"{MODELS[heavy.network].name}, {engine}, {CALLERS} callers of one row, one worker: p99 beside a "
            what += f"{type(heavy.method).__name__} of {heavy.rows} rows / (3 × p99 without it + one of its passes)"
            yield Row(f"fair_{name}_{engine}", what, False, 1, partial(beside, heavy=heavy, engine=engine))


def beside(bench: Bench, heavy: Heavy, engine: str) -> Found:
    """Measures the p99 of small callers beside a heavy request, against what it may be."""
    small = [payload(real(heavy.network, "predict"))]
    ratios, aside = [], dict[str, list[float]]()
    with (
        servers.cutaway(bench.store.real(heavy.network), engine) as server,
        Pipe("bench.parts.load") as pipe,
        ca.Client(server.address, timeout=_DEADLINE_S) as client,
        ThreadPoolExecutor(1) as threads,
    ):
        load, door = Load(pipe), inspect_door(server.address)
        for _ in range(bench.rounds):
            one_pass = _pass(client, heavy)
            alone = load.ask(door, small, CALLERS, _WINDOW_S, pause=_PAUSE_S)["latencies"]
            ended = threads.submit(_run_out, client, heavy)
            time.sleep(_BEGUN_S)
            together = load.ask(door, small, CALLERS, _WINDOW_S, pause=_PAUSE_S)["latencies"]
            if ended.done():
                raise CannotRun("the heavy request ended before its small callers")
            ended.result()
            ratios.append(_p99(together) / (3 * _p99(alone) + one_pass))
            found = {"one pass": one_pass, "p50 alone": median(alone), "p99 alone": _p99(alone)}
            for name, value in {**found, "p50 beside": median(together), "p99 beside": _p99(together)}.items():
                aside.setdefault(name, []).append(value)
    return Found(ratios, {name: f"{median(values) * 1000:.0f} ms" for name, values in aside.items()})


def _p99(latencies: list[float]) -> float:
    return quantiles(latencies, n=100)[98]


def _pass(client: ca.Client, heavy: Heavy) -> float:
    """Returns the seconds of a prediction of the heavy request's rows."""
    model, inputs, _ = heavy.request()
    found = []
    for _ in range(5):
        start = time.perf_counter()
        client.inspect(model, inputs)
        found.append(time.perf_counter() - start)
    return median(found)


def _run_out(client: ca.Client, heavy: Heavy) -> None:
    model, inputs, options = heavy.request(attributions=(heavy.method,), target=0, seed=1, check="off")
    try:
        client.inspect(model, inputs, **options)
    except ca.DeadlineExceeded:
        return
    raise CannotRun("the heavy request was answered")
