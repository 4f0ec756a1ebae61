"""`cutaway serve`: everything from a directory of archives to a listening front door, and back to nothing."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import structlog

from cutaway import archive
from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.backends import Backend, Embedded, Relay
from cutaway.gateway.server import FrontDoor
from cutaway.gateway.store import Store, look_into
from cutaway.gateway.torchserve import TorchServe
from cutaway.results import ModelName
from cutaway.settings import Settings
from cutaway.v1 import worker_pb2
from cutaway.wire import status
from cutaway.worker import Worker

Announce = Callable[[str], None]
T = TypeVar("T")

_PAUSE_S = 0.1
_PATIENCE_S = 30.0


def run(model_store: Path, settings: Settings, *, embedded: bool, workers: int | None, announce: Announce) -> int:
    """Serve every archive in ``model_store`` until SIGTERM or SIGINT.

    Args:
        model_store: a directory with archives made by ``cutaway package``.
        settings: address and limits.
        embedded: True runs the models in this process, without TorchServe and Java.
        workers: worker processes for each model; None is what each archive says.
        announce: told what happens, line by line; ``ready: HOST:PORT`` once a real call has passed.

    Returns:
        0 after a signal; 1 where TorchServe ended by itself.

    Raises:
        CutawayError: nothing can be served.
    """
    # The log is for the operator; what is announced goes to standard output.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    return asyncio.run(_run(model_store, settings, embedded, workers, announce))


async def _run(model_store: Path, settings: Settings, embedded: bool, workers: int | None, announce: Announce) -> int:
    stopped = _on_signals()
    store = look_into(model_store)
    for why in store.faults:
        announce(f"not served: {why}")
    behind = _in_process(store, settings, announce) if embedded else _torchserve(store, settings, workers, announce)
    async with AsyncExitStack() as stack:
        entered = await _unless(stopped, stack.enter_async_context(behind))
        if entered is None:
            return 0
        backend, ended = entered
        door = FrontDoor(backend, settings)
        stack.push_async_callback(door.stop, settings.grace_s)
        await door.start()
        for name in backend.catalog.all():
            announce(f"serving {name.model} {name.version}")
        announce(f"ready: {door.address}")
        await asyncio.wait([stopped, ended], return_when=asyncio.FIRST_COMPLETED)
    announce("stopped" if stopped.done() else "stopped, because TorchServe ended by itself; its log says why")
    return 0 if stopped.done() else 1


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
async def _in_process(
    store: Store, settings: Settings, announce: Announce
) -> AsyncIterator[tuple[Backend, asyncio.Future[None]]]:
    with _unpacked(store) as directories:
        workers = []
        for name, directory in directories.items():
            try:
                workers.append(await asyncio.to_thread(Worker.load, directory, device="cpu"))
            except CutawayError as failure:
                _give_up(store, name, str(failure), announce)
        _refuse_none(store)
        backend = Embedded(workers, store.catalog, waiting=settings.queue, calls=settings.batch)
        yield backend, asyncio.get_running_loop().create_future()


@contextmanager
def _unpacked(store: Store) -> Iterator[dict[ModelName, Path]]:
    with tempfile.TemporaryDirectory(prefix="cutaway-") as scratch:
        directories = {name: Path(scratch) / path.stem for name, path in store.archives.items()}
        for name, directory in directories.items():
            archive.unpack(store.archives[name], directory)
        yield directories


@asynccontextmanager
async def _torchserve(
    store: Store, settings: Settings, workers: int | None, announce: Announce
) -> AsyncIterator[tuple[Backend, asyncio.Future[None]]]:
    paths = list(store.archives.values())
    server = TorchServe(
        paths[0].parent,
        [path.name for path in paths],
        workers=workers,
        batch=1,  # the front door gathers them, and lets nobody wait for company
        max_message_bytes=settings.max_message_bytes,
        log_dir=settings.log_dir,
        start_timeout_s=settings.start_timeout_s,
    )
    announce(f"starting TorchServe; its log is in {settings.log_dir}")
    starting = asyncio.ensure_future(asyncio.to_thread(server.start))
    ended = asyncio.ensure_future(_end_of(server, starting))
    try:
        await asyncio.shield(starting)
        await _answering(server, store, settings.start_timeout_s, announce)
        _refuse_none(store)
        copies = {name: archive.workers(path) if workers is None else workers for name, path in store.archives.items()}
        relay = Relay(
            server.inference_address,
            store.catalog,
            workers=copies,
            calls=settings.batch,
            message_bytes=settings.max_message_bytes,
        )
        yield relay, ended
    finally:
        ended.cancel()
        # A start that is given up half-way must end before what it started can be ended.
        await asyncio.wait([starting])
        await asyncio.to_thread(server.stop, settings.grace_s)


async def _answering(server: TorchServe, store: Store, timeout_s: float, announce: Announce) -> None:
    """Return once every model has answered a real call, has said why it never will, or has had its time."""
    probe = Relay(server.inference_address, store.catalog)

    async def first(name: ModelName) -> None:
        try:
            why = await asyncio.wait_for(_first_answer(server, probe, name), timeout_s)
        except asyncio.TimeoutError:
            why = f"it did not answer within {timeout_s:g} s; TorchServe's log may say why"
        if why:
            _give_up(store, name, why, announce)

    try:
        await asyncio.gather(*map(first, list(store.archives)))
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


async def _end_of(server: TorchServe, starting: asyncio.Future[None]) -> None:
    await asyncio.wait([starting])
    while server.poll() is None:  # noqa: ASYNC110  # a process tells nobody when it ends
        await asyncio.sleep(_PAUSE_S)


def _give_up(store: Store, name: ModelName, why: str, announce: Announce) -> None:
    store.give_up(name, why)
    announce(f"not served: {name.model} {name.version}: {why}")


def _refuse_none(store: Store) -> None:
    if not store.archives:
        raise error(Reason.MODEL_NOT_LOADED, "no model could be loaded: " + "; ".join(store.faults))
