"""The front door over models in this very process: for notebooks, tests and a first try.

from cutaway.gateway import serve

with serve({"net": module}) as server:
    cutaway.Client(server.address).inspect("net", {"x": x})
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from cutaway import packaging
from cutaway.adapters import Adapter
from cutaway.errors import Reason, error
from cutaway.gateway.catalog import Catalog
from cutaway.gateway.desks import Embedded
from cutaway.gateway.server import FrontDoor
from cutaway.limits import Limits
from cutaway.settings import Settings
from cutaway.worker import Worker


@dataclass(frozen=True)
class Served:
    """A running server.

    Attributes:
        address: ``host:port``, for `cutaway.Client`.
        metrics_address: where Prometheus may read metrics; empty for nowhere.
    """

    address: str
    metrics_address: str = ""


@contextmanager
def serve(
    models: Mapping[str, nn.Module | Adapter], address: str = "127.0.0.1:0", *, settings: Settings | None = None
) -> Iterator[Served]:
    """Serve ``models`` by name for as long as the block runs.

    Args:
        models: modules, or adapters, by the name they are served under. They are used where they are, in evaluation
            mode; nobody else should run them meanwhile.
        address: where to listen; port 0 picks a free one.
        settings: limits; by default from ``CUTAWAY_...`` environment variables.

    Raises:
        CutawayError: a model cannot be served under its name, two models share modules, or the address cannot be had.
    """
    limits = (settings or Settings.load()).model_copy(update={"address": address})
    workers = [
        Worker.of(model, name, max_reply_bytes=limits.max_message_bytes, limits=Limits.of(limits))
        for name, model in models.items()
    ]
    _refuse_unservable(workers)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="cutaway-front-door", daemon=True)
    thread.start()
    try:
        door = asyncio.run_coroutine_threadsafe(_open(workers, limits), loop).result()
        try:
            yield Served(door.address, door.observers.address)
        finally:
            asyncio.run_coroutine_threadsafe(door.stop(limits.grace_s), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _open(workers: list[Worker], settings: Settings) -> FrontDoor:
    # Inside the loop: gRPC's server belongs to the loop it is made in.
    catalog = Catalog([worker.name for worker in workers])
    door = FrontDoor(Embedded(workers, catalog, waiting=settings.queue, calls=settings.batch), settings)
    try:
        await door.start()
    except BaseException:
        await door.stop(0)
        raise
    return door


def _refuse_unservable(workers: list[Worker]) -> None:
    for worker in workers:
        if not packaging.is_model_name(worker.name.model):
            raise error(
                Reason.INVALID_VALUE,
                f"{worker.name.model!r} is no model name: a letter, then letters, digits, _, . and -",
                "models",
            )
    for one, other in itertools.combinations(workers, 2):
        if one.shares_with(other):
            raise error(
                Reason.INVALID_VALUE,
                f"{one.name.model!r} and {other.name.model!r} share modules, and hooks of one would sit in the other: "
                "serve copies",
                "models",
            )
