"""From a TorchServe that is starting to models that answer: a real call to each, or a word why not."""

from __future__ import annotations

import asyncio

from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.relay import Relay
from cutaway.gateway.store import Store
from cutaway.gateway.torchserve import TorchServe
from cutaway.results import ModelName
from cutaway.v1 import worker_pb2
from cutaway.wire import status

_PAUSE_S = 0.1
_PATIENCE_S = 30.0


async def silent(server: TorchServe, store: Store, timeout_s: float) -> dict[ModelName, str]:
    """Return once every model of ``store`` has answered a real call, has said why it never will, or has had its time;
    with those that did not answer, and why.

    Raises:
        CutawayError: TorchServe ended.
    """
    probe = Relay([server.inference], store.catalog)

    async def first(name: ModelName) -> str:
        try:
            return await asyncio.wait_for(_first_answer(server, probe, name), timeout_s)
        except asyncio.TimeoutError:
            return f"it did not answer within {timeout_s:g} s; TorchServe's log may say why"

    try:
        names = list(store.archives)
        found = zip(names, await asyncio.gather(*map(first, names)))
        return {name: why for name, why in found if why}
    finally:
        await probe.close()


async def _first_answer(server: TorchServe, probe: Relay, name: ModelName) -> str:
    """What keeps the model from answering, or nothing. A call to a model whose code does not load is never answered:
    only the log says why."""
    call = _ask_until_answered(probe, name)
    try:
        while not call.done():
            if server.poll() is not None:
                raise error(Reason.BACKEND_UNAVAILABLE, f"TorchServe ended while it started:\n{server.log_tail()}")
            why = _load_failure(server.log_tail(), name)
            if why:
                return why
            await asyncio.wait([call], timeout=_PAUSE_S)
        return call.result()
    finally:
        call.cancel()


def _ask_until_answered(probe: Relay, name: ModelName) -> asyncio.Task[str]:
    async def ask() -> str:
        while True:
            try:
                reply = worker_pb2.WorkerReply.FromString(await probe.call(name, "describe", b"", _PATIENCE_S))
                return str(status.from_failure(reply.failure)) if reply.HasField("failure") else ""
            except CutawayError:
                await asyncio.sleep(_PAUSE_S)  # no worker yet

    return asyncio.ensure_future(ask())


def _load_failure(log: str, name: ModelName) -> str:
    """What the handler wrote when it could not load the model, or nothing."""
    mark = f"cutaway cannot load {name.model} {name.version}: "
    return next((line.partition(mark)[2] for line in log.splitlines() if mark in line), "")
