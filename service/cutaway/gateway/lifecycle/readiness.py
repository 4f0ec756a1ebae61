"""Waits for the models of starting processes: one real call to each, or the reason why it cannot answer."""

from __future__ import annotations

import asyncio

from cutaway.config.settings import Settings
from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.backends.remote_worker import RemoteWorker
from cutaway.gateway.backends.worker_pool import WorkerPool
from cutaway.gateway.batching.batcher import NotBegun
from cutaway.gateway.lifecycle.engine import Engine
from cutaway.gateway.models.store import ModelStore
from cutaway.gateway.time_limit import within
from cutaway.results import ModelName
from cutaway.v1 import worker_pb2
from cutaway.wire import grpc_status

_POLL_S = 0.05


async def unready_models(
    engine: Engine, pool: WorkerPool, store: ModelStore, settings: Settings
) -> dict[ModelName, str]:
    """Returns the models that do not answer, with the reason, once every model of ``store`` has answered a real call,
    has reported that it cannot load, or has exceeded `Settings.start_timeout_s`.

    Raises:
        CutawayError: the processes of ``engine`` ended.
    """

    async def fault(name: ModelName) -> str:
        try:
            return await within(settings.start_timeout_s, _fault(engine, pool, name))
        except asyncio.TimeoutError:
            return f"it did not answer within {settings.start_timeout_s:g} s; the log may say why"

    faults = await asyncio.gather(*map(fault, store.archives))
    return {name: why for name, why in zip(store.archives, faults) if why}


async def _fault(engine: Engine, pool: WorkerPool, name: ModelName) -> str:
    """Returns why the model cannot answer; empty if it does. Of a model whose code does not load, only the log has the
    reason."""
    while True:
        if engine.poll() is not None:
            raise error(Reason.BACKEND_UNAVAILABLE, f"{engine.name} ended while it started:\n{engine.log_tail()}")
        if why := _load_failure(engine.log_tail(), name):
            return why
        for worker in pool.of(name):
            if engine.has_worker(worker.pid):
                try:
                    return await _describe(worker)
                except (CutawayError, NotBegun):
                    pass  # it has died; the next one may live
        await asyncio.sleep(_POLL_S)


async def _describe(worker: RemoteWorker) -> str:
    """Asks for a model's description; returns the error that the worker replied with, or the empty string."""
    replies: list[bytes] = []
    await worker.run([worker_pb2.WorkerCall(describe=b"")], lambda _, reply: replies.append(reply))
    reply = worker_pb2.WorkerReply.FromString(replies[0])
    return str(grpc_status.from_failure(reply.failure)) if reply.HasField("failure") else ""


def _load_failure(log: str, name: ModelName) -> str:
    """Returns what a worker logged if it could not load the model, or the empty string."""
    mark = f"cutaway cannot load {name.model} {name.version}: "
    return next((line.partition(mark)[2] for line in log.splitlines() if mark in line), "")
