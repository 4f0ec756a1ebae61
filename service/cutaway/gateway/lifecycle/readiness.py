"""Waits for the models of a starting TorchServe: one real call to each, or the reason why it cannot answer."""

from __future__ import annotations

import asyncio

from cutaway.config.settings import Settings
from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.backends.torchserve import TorchServeBackend
from cutaway.gateway.models.store import ModelStore
from cutaway.gateway.time_limit import within
from cutaway.gateway.torchserve.server_process import TorchServe
from cutaway.results import ModelName
from cutaway.v1 import worker_pb2
from cutaway.wire import grpc_status

_POLL_S = 0.1
_CALL_TIMEOUT_S = 30.0


async def unready_models(server: TorchServe, store: ModelStore, settings: Settings) -> dict[ModelName, str]:
    """Returns the models that do not answer, with the reason, once every model of ``store`` has answered a real call,
    has reported that it cannot load, or has exceeded `Settings.start_timeout_s`.

    Raises:
        CutawayError: TorchServe ended.
    """
    probe = TorchServeBackend([server.inference], store.catalog, settings)

    async def fault(name: ModelName) -> str:
        try:
            return await within(settings.start_timeout_s, _fault(server, probe, name))
        except asyncio.TimeoutError:
            return f"it did not answer within {settings.start_timeout_s:g} s; TorchServe's log may say why"

    try:
        faults = await asyncio.gather(*map(fault, store.archives))
        return {name: why for name, why in zip(store.archives, faults) if why}
    finally:
        await probe.close()


async def _fault(server: TorchServe, probe: TorchServeBackend, name: ModelName) -> str:
    """Returns why the model cannot answer; empty if it does. A call to a model whose code does not load is never
    answered: only the log has the reason."""
    call = asyncio.ensure_future(_describe(probe, name))
    try:
        while not call.done():
            if server.poll() is not None:
                raise error(Reason.BACKEND_UNAVAILABLE, f"TorchServe ended while it started:\n{server.log_tail()}")
            if why := _load_failure(server.log_tail(), name):
                return why
            await asyncio.wait([call], timeout=_POLL_S)
        return call.result()
    finally:
        call.cancel()


async def _describe(probe: TorchServeBackend, name: ModelName) -> str:
    """Asks a model for its description, again and again while its worker is starting.

    Returns the error that the worker replied with, or the empty string.
    """
    while True:
        try:
            reply = worker_pb2.WorkerReply.FromString(await probe.call(name, "describe", b"", (), _CALL_TIMEOUT_S))
            return str(grpc_status.from_failure(reply.failure)) if reply.HasField("failure") else ""
        except CutawayError:
            await asyncio.sleep(_POLL_S)  # no worker yet


def _load_failure(log: str, name: ModelName) -> str:
    """Returns what the handler logged if it could not load the model, or the empty string."""
    mark = f"cutaway cannot load {name.model} {name.version}: "
    return next((line.partition(mark)[2] for line in log.splitlines() if mark in line), "")
