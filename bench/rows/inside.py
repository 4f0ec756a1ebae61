"""Rows about the engine in process, and the total cost of serving (*overhead*)."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from statistics import median

import torch

import cutaway as ca
from bench import checks, environments, servers
from bench.interleaved import Measure, in_turn
from bench.models import Model, models
from bench.pipe import CannotRun, Pipe
from bench.requests import STEPS, slow
from bench.row import Bench, Found
from bench.rows.loads import over
from cutaway.server.processes.environment import WAITING

ROWS, WIDTH = 32, 512
"""Size of the MLP for hook cost: a forward pass of one or two milliseconds."""

WIDE_ROWS, WIDE = 256, 1024
"""Size of the MLP for early stopping."""


def overhead(bench: Bench) -> Found:
    """Measures everything between a client and the hooks."""
    with (
        servers.cutaway(bench.store.of("resnet")) as server,
        Pipe("bench.parts.client", server.address) as client,
        Pipe("bench.parts.by_hand", bench.device, variables=WAITING) as hand,
    ):
        return over(
            {
                "served": lambda: median(client.ask({"question": "resnet", "count": 3})),
                "by hand": lambda: median(hand.ask({"count": 3})),
            },
            bench.rounds,
            "s",
        )


def prediction_first(bench: Bench) -> Found:
    """Measures the time to the prediction, with three explanations behind it and without any."""
    model, inputs, explanations = slow()
    with (
        servers.cutaway(bench.store.of("resnet"), "processes") as server,
        ca.Client(server.address, timeout=600) as client,
    ):

        def streamed() -> float:
            with client.inspect_stream(model, inputs, **explanations) as stream:
                seconds = timed(lambda: next(stream.parts()))
            client.inspect(model, inputs)  # returns when the rest of the stream has ended
            return seconds

        return over(
            {"stream": streamed, "bare": lambda: timed(lambda: client.inspect(model, inputs))}, bench.rounds, "s"
        )


def timed(run: Callable[[], object]) -> float:
    """Returns the seconds that ``run`` takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def hooks(bench: Bench) -> Found:
    """Measures the time that twelve captures add to a forward pass, divided by what nnsight adds.

    Uses the fastest runs of each round, because the added time is smaller than the noise of a busy machine. No server
    runs, so OpenMP threads wait as PyTorch sets them. nnsight returns the model's own tensors; ours are copies
    made when the hook fired.

    Raises:
        CannotRun: a forward pass with captures was faster than one without, so the machine is too busy.
    """
    size = (str(ROWS), str(WIDTH))
    with (
        Pipe("bench.parts.mlp", *size, "cpu") as ours,
        Pipe("bench.peers.nnsight_mlp", *size, python=environments.python("nnsight")) as theirs,
    ):
        found = in_turn(
            {
                f"{name}, {kind}": _mlp(pipe, kind, 100, min)
                for name, pipe in {"ours": ours, "nnsight": theirs}.items()
                for kind in ("plain", "captured")
            },
            bench.rounds,
        )
    aside = {name: f"{median(values) * 1000:.3g} ms" for name, values in found.items()}
    return Found(added(*found.values()), aside)


def added(
    plain: list[float], captured: list[float], their_plain: list[float], their_captured: list[float]
) -> list[float]:
    """Returns our added time divided by theirs, one value per round."""
    ours = [one - without for one, without in zip(captured, plain)]
    theirs = [one - without for one, without in zip(their_captured, their_plain)]
    if min(*ours, *theirs) <= 0:
        raise CannotRun("a forward with captures was quicker than one without: this machine is too busy to tell")
    return [one / other for one, other in zip(ours, theirs)]


def stop(bench: Bench) -> Found:
    """Measures a capture at layer 3 of 12 against a full forward pass."""
    size = (str(WIDE_ROWS), str(WIDE))
    with Pipe("bench.parts.mlp", *size, bench.device, variables=WAITING) as pipe:
        return over(
            {"stopped": _mlp(pipe, "stopped", 10, median), "plain": _mlp(pipe, "plain", 10, median)}, bench.rounds, "s"
        )


def _mlp(pipe: Pipe, kind: str, count: int, of: Callable[[list[float]], float]) -> Measure:
    return lambda: of(pipe.ask({"run": kind, "count": count}))


def check(bench: Bench) -> Found:
    """Measures an attribution with the default check against one without."""
    with _digits(bench.device) as model:
        method = ca.IntegratedGradients(n_steps=STEPS)
        modes = {"same_pass": ca.CheckMode.SAME_PASS, "off": ca.CheckMode.OFF}
        return over({name: checks.timed(model, method, mode) for name, mode in modes.items()}, 3 * bench.rounds, "ms")


@contextmanager
def _digits(device: str) -> Iterator[Model]:
    with tempfile.TemporaryDirectory() as directory:
        model = next(models(Path(directory)))
        model.inspected.module.to(device)
        yield model._replace(inputs={name: tensor.to(device) for name, tensor in model.inputs.items()})


def check_same_pass(bench: Bench) -> Found:
    """Measures attribution with a `same_pass` check divided by attribution alone, as median over methods and models."""
    rows = [row for row in _methods(bench.rounds) if row.same_pass]
    return Found([median(row.same_pass.middle for row in rows if row.same_pass)], _each(rows, "same_pass"))


def check_independent(bench: Bench) -> Found:
    """Measures the same for `independent` checks."""
    rows = _methods(bench.rounds)
    return Found([median(row.independent.middle for row in rows)], _each(rows, "independent"))


def _each(rows: list[checks.Row], mode: str) -> dict[str, str]:
    return {f"{row.model}, {row.method}": str(getattr(row, mode)) for row in rows}


@cache
def _methods(rounds: int) -> list[checks.Row]:
    with tempfile.TemporaryDirectory() as directory:
        return [row for model in models(Path(directory)) for row in checks.rows(model, rounds)]


def cuda() -> bool:
    """Whether torch can use a GPU."""
    return torch.cuda.is_available()
