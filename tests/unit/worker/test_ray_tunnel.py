"""The way of calls to a worker on another machine: through TLS that lets nobody else in, and out of a worker that ends
without a call lost. Ray itself takes part in tests/integration/gateway/test_ray.py."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
from torch import Tensor, nn

from cutaway.client.request_builder import build_request
from cutaway.contract.results import ModelName
from cutaway.contract.tensors import Buffer
from cutaway.contract.wire.worker_reply import Reply
from cutaway.server.backends.remote_worker import RemoteWorker, WorkerPool
from cutaway.server.ray import replica as replica_port
from cutaway.server.ray.keeper import Entrances
from cutaway.server.ray.plan import CALLS, WAITING, PlannedModel, RayPlan, workers_wanted
from cutaway.server.ray.replica import ReplicaPort
from cutaway.server.ray.tunnel import Address, Identity, MutualTls, new_identity
from cutaway.server.settings import Settings
from cutaway.server.worker.server import WorkerServer
from cutaway.server.worker.worker import Worker
from cutaway.server.worker_protocol import FrameKind, ScratchDirectory, frame
from cutaway.v1 import worker_pb2
from tests.support.turns import run
from tests.support.waiting import PATIENCE_S
from tests.support.worker_calls import message

NAME = ModelName("gated", "1.0")
HOST = "127.0.0.1"

pytestmark = pytest.mark.anyio


class Gated(nn.Module):
    """The identity; below zero, it waits until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.let_go = threading.Event(), threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        if x[0, 0] < 0:
            self.entered.set()
            self.let_go.wait(PATIENCE_S)
        return x * 1.0


class Ends(NamedTuple):
    """Both ends of the tunnel: the gateway's pool, and the replica's port and worker."""

    pool: WorkerPool
    model: Gated
    server: WorkerServer
    port: ReplicaPort
    address: Address
    keeper: Address
    keepers: Identity
    replicas: Identity
    wanted: threading.Event


@asynccontextmanager
async def tunnel() -> AsyncIterator[Ends]:
    """A worker behind a port, found by a pool; as in the keeper and in a replica."""
    keepers, replicas = new_identity(), new_identity()
    pool, model, wanted = WorkerPool(), Gated(), threading.Event()
    wanted.set()
    with ScratchDirectory() as files:
        server = WorkerServer(Worker.of(model, "gated"), Path(files) / "0")
        entrances = Entrances(pool.path, MutualTls(keepers, replicas.certificate))
        keeper = await entrances.open(HOST)
        before = listening()
        port = ReplicaPort(
            Path(files) / "0",
            HOST,
            keeper,
            MutualTls(replicas, keepers.certificate),
            wants_calls=wanted.is_set,
            abandoned=lambda: None,
        )
        pool.open()
        await until(lambda: bool(pool.of(NAME)))
        (number,) = listening() - before
        try:
            yield Ends(pool, model, server, port, Address(HOST, number), keeper, keepers, replicas, wanted)
        finally:
            model.let_go.set()
            wanted.clear()
            pool.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # what is waited for is in other threads too
        await asyncio.sleep(0.02)


def call(value: float, **how: Any) -> worker_pb2.WorkerCall:
    return message(build_request("gated", {"x": np.full((1, 1), value, np.float32)}), **how)


async def ask(worker: RemoteWorker, asked: worker_pb2.WorkerCall) -> Reply:
    replies: list[Buffer] = []
    await run(worker, [asked], lambda _, reply: replies.append(reply), waiting=5)
    return Reply.read(replies[0])


def listening() -> set[int]:
    """The ports at which this process listens."""
    return {each.laddr.port for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_LISTEN}


async def test_calls_and_streams_pass() -> None:
    """As they pass through the socket of a worker of this machine; its process counts as one elsewhere."""
    async with tunnel() as ends:
        (worker,) = ends.pool.of(NAME)
        assert worker.pid == 0
        assert (await ask(worker, call(3.0))).response
        number = (await ask(worker, call(4.0, stream=True))).pieces
        pieces = [piece async for piece in worker.pieces(number, time.time() + PATIENCE_S)]
        assert len(pieces) >= 2
        await until(lambda: (ends.server.calls, ends.server.waiting) == (0, 0))


@pytest.mark.parametrize("stranger", ["without a certificate", "with one of its own", "without TLS"])
async def test_strangers_get_nothing(stranger: str) -> None:
    """Neither from a replica's port nor from the keeper's: not one byte of an answer, and no worker is announced."""

    async def answer(address: Address) -> bytes:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if stranger == "with one of its own":
            context = MutualTls(new_identity(), new_identity().certificate).calling
            context.verify_mode = ssl.CERT_NONE
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(*address, ssl=None if "TLS" in stranger else context)
            try:
                writer.write(frame(FrameKind.OPEN) + b'["127.0.0.1", 1]\n')
                return await reader.read()
            finally:
                writer.close()
        return b""

    async with tunnel() as ends:
        found = [await answer(ends.address), await answer(ends.keeper)]
        assert all(b"gated" not in each and len(each) <= 7 for each in found)  # a TLS alert in plain text at most
        assert [path.name for path in ends.pool.path.iterdir() if path.name.isdigit()] == ["1"]
        assert (await ask(ends.pool.of(NAME)[0], call(1.0))).response


async def test_each_side_knows_the_other_only() -> None:
    """A replica's key makes no keeper: not even another replica takes calls from it."""
    async with tunnel() as ends:
        context = MutualTls(ends.replicas, ends.replicas.certificate).calling
        reader, writer = await asyncio.open_connection(*ends.address, ssl=context)
        writer.write(frame(FrameKind.OPEN))
        # An alert, or what came before it could be read.
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)


async def test_a_worker_that_shall_end_finishes_its_calls() -> None:
    """It gets no further turn from the moment at which it says so; its connection ends when the last is answered."""
    async with tunnel() as ends:
        (worker,) = ends.pool.of(NAME)
        asked = asyncio.ensure_future(ask(worker, call(-1.0)))
        await asyncio.to_thread(ends.model.entered.wait)
        assert (ends.server.calls, ends.server.waiting) == (1, 5)
        ends.wanted.clear()
        ends.server.leave()
        await until(lambda: not ends.pool.of(NAME))
        assert ends.pool.workers == [worker]
        assert not asked.done()
        ends.model.let_go.set()
        assert (await asked).response
        await until(lambda: not ends.pool.workers)
        await until(lambda: not ends.port.connections)


async def test_a_lost_connection_is_made_again() -> None:
    """The replica says again where it is."""
    async with tunnel() as ends:
        (worker,) = ends.pool.of(NAME)
        worker.close()
        await until(lambda: not ends.pool.of(NAME))
        await until(lambda: bool(ends.pool.of(NAME)))
        assert (await ask(ends.pool.of(NAME)[0], call(1.0))).response


def test_a_replica_without_a_keeper_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so after a while: nobody else would end it."""
    monkeypatch.setattr(replica_port, "_ABANDONED_S", 0.5)
    monkeypatch.setattr(replica_port, "_ANNOUNCE_S", 0.1)
    own, other, abandoned = new_identity(), new_identity(), threading.Event()
    ReplicaPort(
        Path(os.devnull),
        HOST,
        Address(HOST, 1),
        MutualTls(own, other.certificate),
        wants_calls=lambda: True,
        abandoned=abandoned.set,
    )
    assert abandoned.wait(PATIENCE_S)


def test_a_plan_is_read_as_it_was_written() -> None:
    """With all that it holds."""
    model = PlannedModel(NAME, Path("/models/gated.mar"), 1, 4)
    settings = Settings(ray_address="head:6379", ray_cpus=0.5, tokens=Path("tokens.toml"), max_queue_bytes=9)
    plan = RayPlan(run="run", models=(model,), sockets=Path("/sockets"), settings=settings)
    read = RayPlan.model_validate_json(plan.model_dump_json())
    assert read == plan
    assert read.models[0].name == NAME


def test_workers_are_wanted_for_calls_under_way_and_waiting() -> None:
    """Those that wait count once, although each replica reports them; without reports, none are wanted."""

    def wanted(reported: dict[str, dict[str, float]]) -> int:
        config = SimpleNamespace(target_ongoing_requests=8.0)
        return workers_wanted(SimpleNamespace(aggregated_metrics=reported, config=config))[0]

    assert wanted({CALLS: {"one": 9.0, "two": 7.0}, WAITING: {"one": 15.0, "two": 16.0}}) == 4
    assert wanted({CALLS: {"one": 8.0}, WAITING: {"one": 0.0}}) == 1
    assert wanted({}) == 0
