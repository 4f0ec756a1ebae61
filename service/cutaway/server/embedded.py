"""A gateway over models in this process, for notebooks, tests and first steps.

from cutaway.gateway import serve

server = serve({"net": module})
cutaway.Client(server.address).inspect("net", {"x": x})
server.stop()
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager

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

_SERVERS: set[Served] = set()


def _stop_all() -> None:
    for server in tuple(_SERVERS):
        server.stop()


# `atexit` comes too late: a server's end needs executors, which end before. They use this hook of CPython themselves.
threading._register_atexit(_stop_all)  # type: ignore[attr-defined]


class Served:
    """A running server: `stop` ends it, and so does the end of a ``with`` block, and of the process.

    Attributes:
        address: ``host:port``, for `cutaway.Client`.
        metrics_address: ``host:port`` of the Prometheus metrics; empty if they are not served.
        http_address: ``host:port`` of the page, Connect, gRPC-Web and REST; empty if they are not served.
    """

    def __init__(self, server: GatewayServer, running: ExitStack) -> None:
        self.address = server.address
        self.metrics_address = server.observers.address
        self.http_address = server.http_address
        self._running = running
        _SERVERS.add(self)

    def stop(self) -> None:
        """Ends the running calls, as far as they end within the grace, and the server; a second call does nothing."""
        _SERVERS.discard(self)
        self._running.close()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        page = f", page at http://{self.http_address}/" if self.http_address else ""
        return f"<Served at {self.address}{page}>"


def serve(
    models: Mapping[str, nn.Module | Adapter], address: str = "127.0.0.1:0", *, settings: Settings | None = None
) -> Served:
    """Serves models until the block ends, or `Served.stop` is called.

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
    with ExitStack() as stack:
        loop = stack.enter_context(_loop())
        running = _running(workers, settings)
        server = asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result()
        stack.callback(lambda: asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result())
        return Served(server, stack.pop_all())


@contextmanager
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Runs an event loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="cutaway-gateway", daemon=True)
    thread.start()
    try:
        yield loop
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
