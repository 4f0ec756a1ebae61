"""Many requests of all kinds at once, a fifth of which fail: each gets its own answer, none leaves a trace."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.gateway import serve
from tests.support.adapters.mirror_adapter import COUNTS, MirrorAdapter, digest
from tests.support.mixed import mirror
from tests.support.mixed.answers import flat
from tests.support.mixed.callers import ask, ask_all
from tests.support.mixed.mix import Model, draw, models, requests
from tests.support.models import SUBJECTS
from tests.support.serving import Server
from tests.support.state_snapshot import State

A_THOUSAND = 1000
SEED = 20
EIGHT = 8
BUSY = 2
"""How many calls are under way before one worker, so that the others wait."""

ROUNDS = 4
BUSY_MS = (500, 2_000, 8_000, 30_000)
"""How long they are; a longer time is tried where eight callers did not come within it."""

CLEAN = {"hooks": 0, "modes": 0, "training": 0, "frozen": 1, "gradients": 0}
"""The state of a worker of the mirror's; one of its parameters was frozen when it was loaded."""

DIGEST = digest(MirrorAdapter().build())

Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def subjects(store: Path) -> list[Model]:
    """The models, in this process, for hooks by hand."""
    return models(store)


@pytest.mark.parametrize("count", [120, pytest.param(A_THOUSAND, marks=pytest.mark.slow)])
def test_mixed_requests_through_torchserve(
    count: int, subjects: list[Model], server: Server, record_property: Record
) -> None:
    """From sixteen threads through TorchServe: no wrong reply; afterwards, and all the while, no worker shows a trace
    of any of them."""
    before = _plain(server.address, subjects)
    with _watched(server.address) as states:
        _ask(count, server.address, subjects, record_property)
    after = _plain(server.address, subjects)
    assert len(states) > 10
    assert [state for state in states if _without_rows(state) != CLEAN] == []
    for model in subjects:
        _assert_same(before[model.name], after[model.name])
    _assert_parameters_are_those_of(subjects, server.address)


@pytest.mark.slow
def test_a_thousand_mixed_requests_in_this_process(store: Path, subjects: list[Model], record_property: Record) -> None:
    """A thousand of them to models in this process, where all there is to see can be looked at: every hook table, flag,
    gradient, parameter and buffer is as it was."""
    served = _adapters(store)
    with serve({name: adapter for name, (adapter, _) in served.items()}) as running:
        before = {name: State.of(network) for name, (_, network) in served.items()}
        with _watched(running.address) as states:
            _ask(A_THOUSAND, running.address, subjects, record_property)
    assert [state for state in states if _without_rows(state) != CLEAN] == []
    for name, (_, network) in served.items():
        assert not before[name].changes(State.of(network)), name


def _ask(count: int, address: str, subjects: Sequence[Model], record_property: Record) -> None:
    drawn = draw(subjects, count, SEED)
    start = time.perf_counter()
    outcomes = ask_all(address, drawn)
    seconds = time.perf_counter() - start
    wrong = [fault for request, outcome in zip(drawn, outcomes) if (fault := request.wrong(outcome))]
    figures = {
        "requests": len(drawn),
        "kinds": len({(request.model, request.name) for request in drawn}),
        "failing": sum(request.answer is None for request in drawn),
        "wrong": len(wrong),
        "seconds": round(seconds, 1),
    }
    for name, figure in figures.items():
        record_property(name, figure)
    print(", ".join(f"{name} {figure}" for name, figure in figures.items()))
    assert not wrong, "\n".join(wrong[:20])
    assert figures["failing"] * 5 == figures["requests"] == count


def _plain(address: str, subjects: Sequence[Model]) -> dict[str, ca.InspectResult]:
    with ca.Client(address) as client:
        return {model.name: client.inspect(model.name, model.inputs) for model in subjects}


def _assert_same(one: ca.InspectResult, other: ca.InspectResult) -> None:
    assert flat(one).keys() == flat(other).keys()
    assert all(np.array_equal(array, flat(other)[name]) for name, array in flat(one).items())
    assert one.provenance == other.provenance
    assert one.warnings == other.warnings == ()


@contextmanager
def _watched(address: str) -> Iterator[list[dict[str, int]]]:
    """Ask for the state of the mirror's worker, again and again for as long as the block runs, and once behind it."""
    states: list[dict[str, int]] = []
    over = threading.Event()

    def watch() -> None:
        with ca.Client(address) as client:
            while not over.wait(0.05):
                states.append(_state(client, "mirror"))
            states.append(_state(client, "mirror"))

    with ThreadPoolExecutor(1) as watcher:
        watching = watcher.submit(watch)
        try:
            yield states
        finally:
            over.set()
            watching.result()


def _state(client: ca.Client, model: str, wait_ms: int = 0) -> dict[str, int]:
    """What is in the worker when a plain request's pass begins; its parameters and buffers must be the right ones."""
    inputs = mirror.inputs()
    result = client.inspect(model, {**inputs, "ask": torch.full((mirror.ROWS,), wait_ms, dtype=torch.int64)})
    counts = result.predictions["counts"][0].tolist()
    assert bytes(result.predictions["digest"][0].tolist()) == DIGEST
    return dict(zip(COUNTS, counts))


def _without_rows(state: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in state.items() if name != "rows"}


def _assert_parameters_are_those_of(subjects: Sequence[Model], address: str) -> None:
    """Operators show what goes into them, weights included: over the wire, they are still those of the archive."""
    networks = {model.name: (model.network, model.inputs) for model in subjects}
    with ca.Client(address) as client:
        for name, prefix in (("digits", ""), ("sentences", "encoder.layer.0."), ("sentences", "encoder.layer.5.")):
            network, inputs = networks[name]
            shown = client.inspect(name, inputs, captures=[ca.Capture(op=f"{prefix}**:*#0", at="input")])
            bits = {tensor.tobytes() for tensor in flat(shown).values()}
            parameters = {n: p for n, p in network.named_parameters() if n.startswith(prefix)}
            assert parameters
            assert [n for n, p in parameters.items() if p.detach().numpy().tobytes() not in bits] == []


def _adapters(store: Path) -> dict[str, tuple[Adapter, nn.Module]]:
    """The models as they are served in this process, each with its network."""
    built = {name: make(store) for name, make in SUBJECTS.items()}
    networks = {name: (subject.adapter, subject.model) for name, subject in built.items()}
    networks["mirror"] = (MirrorAdapter(), MirrorAdapter().build())
    for adapter, network in networks.values():
        adapter.load = lambda _, network=network: network  # type: ignore[method-assign, misc]
    return networks


@pytest.mark.slow
def test_requests_in_one_batch_never_touch_each_other(
    subjects: list[Model], server: Server, record_property: Record
) -> None:
    """Eight callers whose calls waited while the worker was busy, and that it is handed together, with edits and
    without, failing and not: each gets what it gets alone, and a neighbour's hooks and edits are never there."""
    dice = random.Random(SEED)
    good, bad = requests(next(model for model in subjects if model.name == "mirror"))
    sizes = []
    with ca.Client(server.address) as client, ThreadPoolExecutor(EIGHT + BUSY) as callers:
        for _ in range(ROUNDS):
            drawn = dice.sample(good, 4) + dice.sample(bad, 3)
            for busy_ms in BUSY_MS:
                for _ in range(BUSY):
                    callers.submit(_state, client, "mirror", busy_ms)
                time.sleep(busy_ms / 2000)
                state = callers.submit(_state, client, "mirror")
                outcomes = callers.map(lambda request: ask(client, request), drawn)
                assert [request.wrong(outcome) for request, outcome in zip(drawn, outcomes)] == [""] * len(drawn)
                assert _without_rows(state.result()) == CLEAN
                if state.result()["rows"] == EIGHT:
                    break
            sizes.append(state.result()["rows"])
    record_property("batches", sizes)
    assert sizes == [EIGHT] * ROUNDS
