"""What hangs is found and replaced: workers that are stopped or never return, and what starts them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import cutaway as ca
from tests.conftest import ADAPTERS
from tests.support.adapters.fragile_adapter import ENDLESS, FROZEN, LAYERED
from tests.support.health import health
from tests.support.processes import leader, leaders, make_starts_slow, next_leader, worker
from tests.support.serving import Server, package, serving
from tests.support.waiting import until

MODELS = ("fragile", "frozen", "tiny")
X = {"x": np.ones((1, 3), np.float32)}
SHORT_S = 2.0
SOON_S = "2"
"""After so long a worker without progress is replaced, where nothing else starts that may look like one."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models; two of them have inputs for which they never return."""
    directory = tmp_path_factory.mktemp("store")
    for model in ("fragile", "frozen"):
        package(directory, model, f"{ADAPTERS / 'fragile_adapter.py'}:FragileAdapter")
    package(directory, "tiny", f"{ADAPTERS / 'tiny_adapter.py'}:Tiny")
    return directory


@pytest.fixture(
    scope="module",
    params=["processes", *(pytest.param(each, marks=pytest.mark.slow) for each in ("torchserve", "ray"))],
)
def server(request: pytest.FixtureRequest, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """All, in the workers of each engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUTAWAY_RAY_CPUS", "0.1")
        if request.param == "processes":
            patch.setenv("CUTAWAY_HANG_S", SOON_S)
        with serving(store, tmp_path_factory.mktemp("hangs") / "logs", f"--engine={request.param}") as running:
            yield running


def _answers(client: ca.Client, model: str) -> bool:
    try:
        return bool(client.inspect(model, X, timeout=SHORT_S).predictions)
    except (ca.Unavailable, ca.DeadlineExceeded):
        return False


def _is_replaced(server: Server, model: str, before: int) -> bool:
    """Whether another process runs the model; that of Ray may end later than its calls."""
    with contextlib.suppress(LookupError):
        return worker(server, model).pid != before
    return False


def _memory_is_limited(pid: int) -> bool:
    if not psutil.LINUX:
        return True
    limit, _ = psutil.Process(pid).rlimit(psutil.RLIMIT_DATA)
    return 0 < limit < psutil.virtual_memory().total


def test_every_worker_has_a_limit_of_memory(server: Server) -> None:
    """Without a setting: its share of what the server may use."""
    assert all(_memory_is_limited(worker(server, model).pid) for model in MODELS)


def test_a_long_pass_ends_without_its_worker(server: Server) -> None:
    """A forward of a thousand layers goes on for minutes. Its caller is told at the deadline, or leaves; the same
    worker then answers others at once, as before."""
    before = worker(server, "fragile").pid

    async def leave() -> None:
        async with ca.AsyncClient(server.address) as client:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(client.inspect("fragile", {"x": X["x"] * LAYERED}), 0.5)

    with ca.Client(server.address) as client:
        expected = client.inspect("fragile", X).predictions["output"]
        with pytest.raises(ca.DeadlineExceeded):
            client.inspect("fragile", {"x": X["x"] * LAYERED}, timeout=0.5)
        np.testing.assert_array_equal(client.inspect("fragile", X, timeout=SHORT_S).predictions["output"], expected)
        asyncio.run(leave())
        np.testing.assert_array_equal(client.inspect("fragile", X, timeout=SHORT_S).predictions["output"], expected)
    assert worker(server, "fragile").pid == before


def test_workers_that_hang_are_replaced(server: Server) -> None:
    """One is stopped, another is in an endless loop, and in the third a pattern holds Python's lock: calls end at their
    deadlines, the models' health says so, and new workers answer, though calls go on coming. The gateway serves on
    while any model does."""
    before = {model: worker(server, model).pid for model in MODELS}
    with ca.Client(server.address) as client:
        os.kill(before["tiny"], signal.SIGSTOP)
        until(lambda: health(server.address, "tiny") == "NOT_SERVING")
        until(lambda: health(server.address) == health(server.address, "fragile") == "SERVING")
        for model, value in (("fragile", ENDLESS), ("frozen", FROZEN)):
            with pytest.raises(ca.DeadlineExceeded):
                client.inspect(model, {"x": X["x"] * value}, timeout=SHORT_S)
        until(lambda: health(server.address, "fragile") == "NOT_SERVING")
        for model in MODELS:
            until(lambda model=model: _answers(client, model))  # type: ignore[misc]
            until(lambda model=model: _is_replaced(server, model, before[model]))  # type: ignore[misc]
    until(lambda: {health(server.address, model) for model in MODELS} == {"SERVING"})


@pytest.mark.slow
def test_an_engine_that_hangs_is_replaced(server: Server) -> None:
    """What starts the workers is stopped: health says so, callers are told to try again, and another one answers."""
    make_starts_slow(server)
    before = leader(server, "tiny").pid
    os.kill(before, signal.SIGSTOP)
    until(lambda: health(server.address, "tiny") == "NOT_SERVING")
    with ca.Client(server.address) as client:
        with pytest.raises(ca.Unavailable) as caught:
            client.inspect("tiny", X)
        assert caught.value.retry_after_s
        assert "unexpectedly" not in caught.value.message
        for model in MODELS:
            until(lambda model=model: _answers(client, model))  # type: ignore[misc]
    assert leader(server, "tiny").pid != before


@pytest.mark.slow
def test_an_engine_that_hangs_while_it_starts_again_is_replaced(server: Server) -> None:
    """Long before models must have loaded."""
    make_starts_slow(server)
    before = leaders(server)
    leader(server, "tiny").kill()
    stopped = next_leader(server, *before)
    stopped.send_signal(signal.SIGSTOP)
    with ca.Client(server.address) as client:
        for model in MODELS:
            until(lambda model=model: _answers(client, model))  # type: ignore[misc]
        until(lambda: stopped not in leaders(server))  # a worker that it had started may have answered before
        for model in MODELS:
            until(lambda model=model: _answers(client, model))  # type: ignore[misc]


@pytest.mark.slow
def test_a_hang_in_the_gateways_process_is_reported(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can end it: the model's health says so, and the other model serves on."""
    monkeypatch.setenv("CUTAWAY_GRACE_S", "0")
    monkeypatch.setenv("CUTAWAY_HANG_S", SOON_S)
    with serving(store, tmp_path / "logs", "--engine=embedded") as running, ca.Client(running.address) as client:
        assert health(running.address, "fragile") == "SERVING"
        with pytest.raises(ca.DeadlineExceeded):
            client.inspect("fragile", {"x": X["x"] * ENDLESS}, timeout=SHORT_S)
        until(lambda: health(running.address, "fragile") == "NOT_SERVING")
        assert health(running.address, "tiny") == "SERVING"
        assert client.inspect("tiny", X).predictions
        assert _memory_is_limited(running.process.pid)
