"""Rows about the engine, without a server between; and the one that says what all of the serving costs."""

from __future__ import annotations

import tempfile
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
from bench.questions import STEPS
from bench.row import Bench, Found
from bench.rows.loads import over
from cutaway.threads import WAITING

ROWS, WIDTH = 32, 512
"""Of the MLP where a hook's own cost is measured: a forward of a millisecond or two."""

WIDE_ROWS, WIDE = 256, 1024
"""Of the MLP that stops early: a forward that is worth stopping."""


def overhead(bench: Bench) -> Found:
    """Everything that lies between a client and the hooks."""
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


def hooks(bench: Bench) -> Found:
    """What twelve captures add to a forward, beside what nnsight adds: of the quickest runs of each round, for what
    is added is less than what a busy machine adds to one run in two. Nothing serves, so threads wait as PyTorch has
    them wait. nnsight hands over the model's own tensors; ours are copies, as they were when the hook fired.

    Raises:
        CannotRun: a forward with captures was quicker than one without: the machine is too busy to tell.
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
    """Ours over theirs, of what captures add to a plain forward; a value a round."""
    ours = [one - without for one, without in zip(captured, plain)]
    theirs = [one - without for one, without in zip(their_captured, their_plain)]
    if min(*ours, *theirs) <= 0:
        raise CannotRun("a forward with captures was quicker than one without: this machine is too busy to tell")
    return [one / other for one, other in zip(ours, theirs)]


def stop(bench: Bench) -> Found:
    """A capture of the third of twelve layers, beside all twelve."""
    size = (str(WIDE_ROWS), str(WIDE))
    with Pipe("bench.parts.mlp", *size, bench.device, variables=WAITING) as pipe:
        return over(
            {"stopped": _mlp(pipe, "stopped", 10, median), "plain": _mlp(pipe, "plain", 10, median)}, bench.rounds, "s"
        )


def _mlp(pipe: Pipe, kind: str, count: int, of: Callable[[list[float]], float]) -> Measure:
    return lambda: of(pipe.ask({"run": kind, "count": count}))


def check(bench: Bench) -> Found:
    """The default check of an explanation, beside none."""
    with _digits(bench.device) as model:
        method = ca.IntegratedGradients(n_steps=STEPS)
        modes = {"same_pass": ca.CheckMode.SAME_PASS, "off": ca.CheckMode.OFF}
        return over({name: checks.timed(model, method, mode) for name, mode in modes.items()}, 3 * bench.rounds, "ms")


@contextmanager
def _digits(device: str) -> Iterator[Model]:
    with tempfile.TemporaryDirectory() as directory:
        model = next(models(Path(directory)))
        model.subject.module.to(device)
        yield model._replace(inputs={name: tensor.to(device) for name, tensor in model.inputs.items()})


def check_same_pass(bench: Bench) -> Found:
    """The median over methods and models, of attribution with check over attribution alone."""
    rows = [row for row in _methods(bench.rounds) if row.same_pass]
    return Found([median(row.same_pass.middle for row in rows if row.same_pass)], _each(rows, "same_pass"))


def check_independent(bench: Bench) -> Found:
    """Likewise."""
    rows = _methods(bench.rounds)
    return Found([median(row.independent.middle for row in rows)], _each(rows, "independent"))


def _each(rows: list[checks.Row], mode: str) -> dict[str, str]:
    return {f"{row.model}, {row.method}": str(getattr(row, mode)) for row in rows}


@cache
def _methods(rounds: int) -> list[checks.Row]:
    with tempfile.TemporaryDirectory() as directory:
        return [row for model in models(Path(directory)) for row in checks.rows(model, rounds)]


def cuda() -> bool:
    """Whether there is a GPU that torch can use."""
    return torch.cuda.is_available()
