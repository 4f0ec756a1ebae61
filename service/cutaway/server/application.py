"""The program of ``cutaway serve``: a gateway and its workers, which run until a signal."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import structlog

from cutaway.contract.addresses import UNIX
from cutaway.server.auth.tls import exposure_warning
from cutaway.server.backends.backend import Backend, Supervise
from cutaway.server.child_processes import give_children_default_signals
from cutaway.server.lifecycle.gateway_server import GatewayServer, check_settings
from cutaway.server.lifecycle.supervisor import Supervisor
from cutaway.server.memory import keep_modules, share_heap
from cutaway.server.model_store import read_store
from cutaway.server.observability import logging
from cutaway.server.settings import Settings
from cutaway.server.worker_protocol import delete_abandoned

log = structlog.get_logger(__name__)

T = TypeVar("T")


def run(model_store: Path, settings: Settings, *, workers: int | None, announce: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT.

    Args:
        model_store: a directory with archives made by ``cutaway package``.
        settings: address, limits, and who starts the workers.
        workers: number of workers of each model; None for the archives' own.
        announce: prints what scripts wait for: the models, the address of the metrics, ``ready: HOST:PORT`` once a real
            call has succeeded, and the end. All else that happens is logged.

    Raises:
        CutawayError: no model can be served, or a file in the settings cannot be used.
    """
    check_settings(settings)
    share_heap()
    delete_abandoned()
    log_format = settings.log_format or logging.default_format(sys.stderr)
    logging.configure(log_format)
    settings = settings.model_copy(update={"log_format": log_format})
    asyncio.run(_run(model_store, settings, workers, announce))


async def _run(model_store: Path, settings: Settings, workers: int | None, announce: Callable[[str], None]) -> None:
    stopped = _stop_signal()
    async with AsyncExitStack() as stack:
        entered = await _unless(stopped, stack.enter_async_context(_backend(model_store, settings, workers)))
        if entered is None:
            return
        backend, supervise = entered
        server = GatewayServer(backend, settings)
        stack.push_async_callback(server.stop, settings.grace_s)
        await server.start()
        supervising = asyncio.ensure_future(supervise(server.set_serving))
        stack.push_async_callback(_cancel, supervising)
        for name in backend.catalog.ready():
            announce(f"serving {name.model} {name.version}")
        if server.observers.address:
            announce(f"metrics: {_url(server.observers.address)}/metrics")
        if server.http_address:
            url = _url(server.http_address, tls=settings.tls_certificate is not None)
            announce(f"http: {url}")
            announce(f"page: {url}/")
        if warning := exposure_warning(settings, server.address, server.http_address):
            log.warning(warning)
        keep_modules()
        announce(f"ready: {server.address}")
        await asyncio.wait([stopped, supervising], return_when=asyncio.FIRST_COMPLETED)
        if not stopped.done():
            await supervising  # raises what nobody foresaw
    announce("stopped")


def _url(address: str, tls: bool = False) -> str:
    return address if address.startswith(UNIX) else f"{'https' if tls else 'http'}://{address}"


def _backend(
    model_store: Path, settings: Settings, workers: int | None
) -> AbstractAsyncContextManager[tuple[Backend, Supervise]]:
    """Returns a context that runs the backend."""
    if settings.engine != "embedded":
        return Supervisor(model_store, settings, workers).running()
    store = read_store(model_store)
    for why in store.faults:
        log.warning(f"not served: {why}")
    # Imported here because it imports torch; without torch, a gateway takes a third of the memory.
    from cutaway.server.lifecycle.in_process import in_process_backend

    return in_process_backend(store, settings)


async def _cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def _unless(stopped: asyncio.Future[Any], work: Coroutine[Any, Any, T]) -> T | None:
    """Returns the result of ``work``; cancels it and returns None if ``stopped`` is done first."""
    task = asyncio.ensure_future(work)
    await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        return task.result()
    await _cancel(task)
    return None


def _stop_signal() -> asyncio.Future[Any]:
    """Returns a future that SIGTERM and SIGINT complete; they no longer kill the process, which stops in order."""
    give_children_default_signals()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return asyncio.ensure_future(stopped.wait())
