"""What dies, comes back: workers, what starts them (TorchServe's JVM, a keeper) and the gateway, and what callers see
of it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from google.rpc import error_details_pb2, status_pb2

import cutaway as ca
from cutaway.contract.tensors import Array
from tests.conftest import ADAPTERS
from tests.support.adapters.fragile_adapter import DEADLY, HUNGRY
from tests.support.health import health
from tests.support.processes import leader, make_starts_slow, worker
from tests.support.rounding import SMALL, close
from tests.support.serving import Server, package, serving
from tests.support.waiting import PATIENCE_S, until

CALLERS = 8
KILLS = 2
RESTARTS = 6
ENGINES = ("processes", "torchserve", "ray")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that a request can kill, and one that none can."""
    directory = tmp_path_factory.mktemp("store")
    package(directory, "fragile", f"{ADAPTERS / 'fragile_adapter.py'}:FragileAdapter")
    package(directory, "tiny", f"{ADAPTERS / 'tiny_adapter.py'}:Tiny")
    return directory


@pytest.fixture(scope="module", params=ENGINES)
def server(request: pytest.FixtureRequest, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Both, in the workers of each engine; requests may take half a gibibyte."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUTAWAY_REQUEST_MEMORY_BYTES", str(1 << 29))
        patch.setenv("CUTAWAY_RAY_CPUS", "0.1")
        with serving(store, tmp_path_factory.mktemp("survival") / "logs", f"--engine={request.param}") as running:
            yield running


def rows(value: float, count: int = 1) -> dict[str, Array]:
    return {"x": np.full((count, 3), value, np.float32)}


@pytest.mark.slow
def test_no_call_is_lost_when_a_worker_is_killed(server: Server) -> None:
    """Workers are killed under load: every call is answered, rightly."""
    over = threading.Event()
    answered = [0] * CALLERS
    with ca.Client(server.address) as client:
        expected = {number: client.inspect("tiny", rows(number)).predictions["output"] for number in range(CALLERS)}

        def call(number: int) -> None:
            while not over.is_set():
                found = client.inspect("tiny", rows(number), captures=["linear"], timeout=PATIENCE_S)
                assert close(found.predictions["output"], expected[number], SMALL)
                answered[number] += 1

        with ThreadPoolExecutor(CALLERS) as callers:
            calling = [callers.submit(call, number) for number in range(CALLERS)]
            try:
                for _ in range(KILLS):
                    before = list(answered)
                    worker(server, "tiny").kill()
                    until(lambda before=before: all(now > then + 1 for now, then in zip(answered, before)))  # type: ignore[misc]
            finally:
                over.set()
            for each in calling:
                each.result()


@pytest.mark.slow
def test_an_engine_is_started_as_often_as_it_takes(server: Server) -> None:
    """It is killed again and again before a model answers: the server lives, and serves when it is let be."""
    dead: set[int] = set()

    def starts() -> bool:
        assert server.process.poll() is None
        with contextlib.suppress(psutil.Error, LookupError):
            return leader(server).pid not in dead
        return False

    for _ in range(RESTARTS):
        until(starts)
        dead.add(leader(server).pid)
        leader(server).kill()
    until(lambda: any("is available again" in line for line in server.logged))
    with ca.Client(server.address) as client:
        assert client.inspect("tiny", rows(1.0)).predictions


@pytest.mark.slow
def test_a_request_that_kills_workers_is_tried_twice(server: Server) -> None:
    """It fails by itself, with a reason of its own that says no retry; the next call is answered."""
    with ca.Client(server.address) as client:
        with pytest.raises(ca.Internal) as caught:
            client.inspect("fragile", rows(DEADLY))
        assert caught.value.reason == "WORKER_KILLED"
        assert caught.value.retry_after_s is None
        assert client.inspect("fragile", rows(1.0)).predictions


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "count", "captured", "why"),
    [
        (1.0, 20_000, ("wide",), r"take at least 80\d+ bytes, 536870912 are allowed"),
        (HUNGRY, 1, (), "more memory than is free"),
    ],
    ids=["what rows capture", "seen by the kernel only"],
)
def test_memory_that_runs_out_costs_its_own_request_only(
    server: Server, value: float, count: int, captured: tuple[str, ...], why: str
) -> None:
    """A small request that needs gigabytes: its caller is told so, the worker lives, has taken no more than it may,
    and calls beside it are answered."""
    before = worker(server, "fragile").pid
    with ca.Client(server.address) as client, ThreadPoolExecutor(CALLERS) as callers:
        beside = [callers.submit(client.inspect, "fragile", rows(number)) for number in range(CALLERS - 1)]
        with pytest.raises(ca.ResourceExhausted, match=why) as caught:
            client.inspect("fragile", rows(value, count), captures=captured)
        assert caught.value.reason == "OUT_OF_MEMORY"
        assert all(each.result().predictions for each in beside)
    assert worker(server, "fragile").pid == before
    assert worker(server, "fragile").memory_info().rss < 2 << 30


@pytest.mark.slow
def test_an_engine_comes_back(server: Server) -> None:
    """What starts the workers is killed: calls are told at once when to try again, health turns, it is started again,
    calls pass."""
    make_starts_slow(server)
    process = leader(server, "tiny")
    family = [process, *process.children(recursive=True)]
    with ca.Client(server.address) as client:
        process.kill()
        until(lambda: health(server.address, "tiny") == "NOT_SERVING")
        with pytest.raises(ca.Unavailable) as caught:
            client.inspect("tiny", rows(1.0))
        assert caught.value.reason == "BACKEND_UNAVAILABLE"
        assert caught.value.retry_after_s
        until(lambda: health(server.address, "tiny") == health(server.address, "fragile") == "SERVING")
        assert client.inspect("tiny", rows(1.0)).predictions
        assert client.inspect("fragile", rows(1.0)).predictions
    assert psutil.wait_procs(family, timeout=PATIENCE_S)[1] == []


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_server_that_is_starting_an_engine_again_ends_when_told(store: Path, tmp_path: Path, engine: str) -> None:
    """SIGTERM amid that leaves no process and no error."""
    with serving(store, tmp_path / "logs", f"--engine={engine}") as running:
        leader(running, "tiny").kill()
        until(lambda: health(running.address, "tiny") == "NOT_SERVING")
        assert running.stop() == 0
    assert [each for each in psutil.process_iter() if _mentions(each, str(tmp_path))] == []


def _mentions(process: psutil.Process, path: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(path in word for word in process.cmdline())
    return False


@pytest.mark.slow
def test_clients_find_a_front_door_that_comes_back(store: Path, tmp_path: Path) -> None:
    """It is killed and started again at its address: the same client's next calls are answered, old ones have ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with ca.Client(address) as client:
        with serving(store, tmp_path / "logs", "--engine=embedded", "--address", address) as first:
            assert client.inspect("tiny", rows(1.0)).predictions
            first.process.kill()
            first.process.wait()
        with pytest.raises(ca.Unavailable) as caught:
            client.inspect("tiny", rows(1.0))
        assert caught.value.reason == "SERVER_UNREACHABLE"
        with serving(store, tmp_path / "logs", "--engine=embedded", "--address", address):
            until(lambda: _answers(client))


def _answers(client: ca.Client) -> bool:
    try:
        return bool(client.inspect("tiny", rows(1.0)).predictions)
    except ca.Unavailable:
        return False


def test_a_refusal_says_when_to_try_again() -> None:
    """`google.rpc.RetryInfo` travels with what waiting helps against, and with nothing else."""
    from cutaway.contract.errors import RETRY_AFTER_S, Reason, error
    from cutaway.contract.wire import grpc_status

    for reason in Reason:
        sent = status_pb2.Status.FromString(grpc_status.encode(error(reason, "x")))
        retry = error_details_pb2.RetryInfo()
        carried = [detail.Unpack(retry) for detail in sent.details]
        assert any(carried) == (reason in RETRY_AFTER_S)
        received = grpc_status.decode(reason.code, "x", [(grpc_status.DETAILS_KEY, sent.SerializeToString())])
        assert received.retry_after_s == RETRY_AFTER_S.get(reason)
        assert reason.retryable or reason not in RETRY_AFTER_S
