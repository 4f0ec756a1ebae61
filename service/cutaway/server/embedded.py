"""A gateway over models in this process, for notebooks, tests and first steps.

from cutaway.gateway import serve

with serve({"net": module}) as server:
    cutaway.Client(server.address).inspect("net", {"x": x})
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from torch import nn

from cutaway.adapters import Adapter
from cutaway.contract.errors import Reason, error
from cutaway.server.archive import builder
from cutaway.server.backends.backend import Backend
from cutaway.server.lifecycle.gateway_server import GatewayServer
from cutaway.server.lifecycle.in_process import LocalWorkers
from cutaway.server.model_store import Catalog
from cutaway.server.settings import Settings
from cutaway.server.worker.worker import Worker


@dataclass(frozen=True)
class Served:
    """A running server.

    Attributes:
        address: ``host:port``, for `cutaway.Client`.
        metrics_address: ``host:port`` of the Prometheus metrics; empty if they are not served.
        http_address: ``host:port`` of Connect, gRPC-Web and REST; empty if they are not served.
    """

    address: str
    metrics_address: str = ""
    http_address: str = ""


@contextmanager
def serve(
    models: Mapping[str, nn.Module | Adapter], address: str = "127.0.0.1:0", *, settings: Settings | None = None
) -> Iterator[Served]:
    """Serves models while the block runs.

    Args:
        models: modules or adapters, by the name they are served under. They are not copied or moved: they are put
            into evaluation mode, and no other code should run them meanwhile.
        address: ``host:port`` to listen on; port 0 picks a free one.
        settings: limits; by default from ``CUTAWAY_...`` environment variables.

    Raises:
        CutawayError: a name is invalid, two models share modules, or the address is not available.
    """
    settings = (settings or Settings.load()).model_copy(update={"address": address})
    workers = [Worker.of(model, name, settings) for name, model in models.items()]
    _check(workers)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="cutaway-gateway", daemon=True)
    thread.start()
    running = _running(workers, settings)
    try:
        server = asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result()
        try:
            yield Served(server.address, server.observers.address, server.http_address)
        finally:
            asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@asynccontextmanager
async def _running(workers: list[Worker], settings: Settings) -> AsyncIterator[GatewayServer]:
    # In the loop: gRPC's server belongs to the loop that it is created in.
    local = LocalWorkers(workers)
    server = GatewayServer(Backend(local, Catalog([worker.name for worker in workers]), settings), settings)
    watching = asyncio.ensure_future(local.supervise(settings.hang_s, server.set_serving))
    try:
        await server.start()
        yield server
    finally:
        watching.cancel()
        await server.stop(settings.grace_s)
        await local.close(settings.grace_s)


def _check(workers: list[Worker]) -> None:
    for worker in workers:
        builder.check_model_name(worker.name.model, "models")
    for one, other in itertools.combinations(workers, 2):
        if one.shares_with(other):
            what = f"{one.name.model!r} and {other.name.model!r} share modules, and hooks of one would run in the other"
            raise error(Reason.INVALID_VALUE, f"{what}: serve copies", "models")
