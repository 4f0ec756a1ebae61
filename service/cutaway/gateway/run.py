"""`cutaway serve`: everything from a directory of archives to a listening front door, and back to nothing."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from cutaway.gateway import logs, onward
from cutaway.gateway.backends import Backend
from cutaway.gateway.credentials import exposure
from cutaway.gateway.fleet import Announce
from cutaway.gateway.server import FrontDoor, refuse_unusable
from cutaway.gateway.store import Store, look_into
from cutaway.gateway.supervisor import Serving, Supervisor
from cutaway.settings import Settings

Keep: TypeAlias = Callable[[Serving], Coroutine[Any, Any, None]]
"""Keeps a backend running, and returns where it cannot be kept."""

T = TypeVar("T")


def run(
    model_store: Path | None, settings: Settings, *, embedded: bool, workers: int | None, announce: Announce
) -> int:
    """Serve every archive in ``model_store`` until SIGTERM or SIGINT.

    Args:
        model_store: a directory with archives made by ``cutaway package``; None where the settings name front doors to
            hand calls on to.
        settings: address and limits.
        embedded: True runs the models in this process, without TorchServe and Java.
        workers: worker processes for each model; None is what each archive says.
        announce: told what happens, line by line; ``ready: HOST:PORT`` once a real call has passed.

    Returns:
        0 after a signal; 1 where TorchServe ended by itself and could not be started again.

    Raises:
        CutawayError: nothing can be served, or a file that the settings name cannot be used.
    """
    refuse_unusable(settings)
    # The log is for the operator; what is announced goes to standard output.
    form = settings.log_format or logs.fitting(sys.stderr)
    logs.configure(form)
    settings = settings.model_copy(update={"log_format": form})
    return asyncio.run(_run(model_store, settings, embedded, workers, announce))


async def _run(
    model_store: Path | None, settings: Settings, embedded: bool, workers: int | None, announce: Announce
) -> int:
    stopped = _on_signals()
    if model_store is None:
        behind = _elsewhere(settings)
    else:
        store = look_into(model_store)
        for why in store.faults:
            announce(f"not served: {why}")
        behind = _in_process(store, settings, announce) if embedded else _torchserve(store, settings, workers, announce)
    async with AsyncExitStack() as stack:
        entered = await _unless(stopped, stack.enter_async_context(behind))
        if entered is None:
            return 0
        backend, keep = entered
        door = FrontDoor(backend, settings)
        stack.push_async_callback(door.stop, settings.grace_s)
        await door.start()
        ended = asyncio.ensure_future(keep(door.set_serving))
        stack.push_async_callback(_cancel, ended)
        for name in backend.catalog.all():
            announce(f"serving {name.model} {name.version}")
        if door.observers.address:
            announce(f"metrics: http://{door.observers.address}/metrics")
        if exposed := exposure(settings, door.address):
            announce(exposed)
        gc.collect()
        gc.freeze()  # what is there now stays; each full collection would look through it, and all calls wait meanwhile
        announce(f"ready: {door.address}")
        await asyncio.wait([stopped, ended], return_when=asyncio.FIRST_COMPLETED)
        if not stopped.done():
            await ended
    announce("stopped" if stopped.done() else "stopped, because TorchServe cannot be started again; its log says why")
    return 0 if stopped.done() else 1


async def _cancel(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def _unless(stopped: asyncio.Future[None], work: Coroutine[Any, Any, T]) -> T | None:
    """What ``work`` returns; None where the end was asked for first, and then ``work`` has been undone."""
    task = asyncio.ensure_future(work)
    both: list[asyncio.Future[Any]] = [task, stopped]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
        return None
    return task.result()


def _on_signals() -> asyncio.Future[None]:
    """Done once somebody asks for the end. From here on signals no longer kill: what was started is ended in order."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[None] = loop.create_future()

    def stop() -> None:
        if not stopped.done():
            stopped.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    return stopped


@asynccontextmanager
async def _in_process(store: Store, settings: Settings, announce: Announce) -> AsyncIterator[tuple[Backend, Keep]]:
    # Here and not above: it imports torch, and where the models run elsewhere a front door is a third of the size.
    from cutaway.gateway.desks import loaded

    async with loaded(store, settings, announce) as backend:
        yield backend, _for_ever


async def _for_ever(_: Serving) -> None:
    """Nothing has to be kept running that is in this process."""
    await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def _elsewhere(settings: Settings) -> AsyncIterator[tuple[Backend, Keep]]:
    async with onward.onward(settings) as doors:
        yield doors, partial(onward.keep, doors)


@asynccontextmanager
async def _torchserve(
    store: Store, settings: Settings, workers: int | None, announce: Announce
) -> AsyncIterator[tuple[Backend, Keep]]:
    supervisor = Supervisor(store, settings, workers, announce)
    async with supervisor.running():
        yield supervisor.relay, supervisor.keep
