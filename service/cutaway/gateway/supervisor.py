"""TorchServe, kept running: where it ends by itself, it is started again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from cutaway import archive
from cutaway.errors import CutawayError
from cutaway.gateway.backends import Relay
from cutaway.gateway.starting import silent
from cutaway.gateway.store import Store
from cutaway.gateway.torchserve import TorchServe
from cutaway.settings import Settings

Announce = Callable[[str], None]

_LOOK_S = 0.1
_PAUSES_S = (0.0, 1.0, 2.0, 5.0, 10.0)
"""Before each attempt at starting it again; after the last one that fails, nobody tries any more."""


class Supervisor:
    """One TorchServe over one store, and the relay to it.

    Args:
        store: the models.
        settings: limits, and how long a start may take.
        workers: worker processes for each model; None is what each archive says.
        announce: told what happens, line by line.

    Attributes:
        relay: where calls go; the same one after another start.
    """

    def __init__(self, store: Store, settings: Settings, workers: int | None, announce: Announce) -> None:
        self._store = store
        self._settings = settings
        self._announce = announce
        self._server = TorchServe(
            next(iter(store.archives.values())).parent,
            [path.name for path in store.archives.values()],
            workers=workers,
            batch=1,  # the front door gathers them, and lets nobody wait for company
            max_message_bytes=settings.max_message_bytes,
            log_dir=settings.log_dir,
            start_timeout_s=settings.start_timeout_s,
        )
        self._workers = workers
        self._starting: asyncio.Future[None] | None = None
        self.relay: Relay

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """TorchServe runs, and every model that can has answered, when the block begins; nothing of it is left when
        the block has ended, also where it is left amid a start.

        Raises:
            CutawayError: TorchServe does not start, or no model answers.
        """
        self._announce(f"starting TorchServe; its log is in {self._settings.log_dir}")
        try:
            await self._start()
            for name, why in (await silent(self._server, self._store, self._settings.start_timeout_s)).items():
                self._announce(self._store.give_up(name, why))
            self._store.refuse_none()
            self.relay = Relay(
                self._server.inference_address,
                self._store.catalog,
                workers={name: self._workers or archive.workers(path) for name, path in self._store.archives.items()},
                calls=self._settings.batch,
                waiting=self._settings.queue,
                message_bytes=self._settings.max_message_bytes,
            )
            yield
        finally:
            # A start that is given up half-way must end before what it started can be ended.
            if self._starting is not None:
                await asyncio.wait([self._starting])
            await asyncio.to_thread(self._server.stop, self._settings.grace_s)

    async def keep(self, serving: Callable[[bool], Awaitable[None]]) -> None:
        """Start TorchServe again whenever it ends by itself; return where it cannot be.

        Args:
            serving: told when calls can no longer be answered, and when they can again.
        """
        while True:
            await self._end()
            self._announce("TorchServe ended by itself; its log says why; starting it again")
            self.relay.lose()
            await serving(False)
            if not await self._again():
                return
            await self.relay.move(self._server.inference_address)
            await serving(True)
            self._announce("TorchServe answers again")

    async def _again(self) -> bool:
        for pause_s in _PAUSES_S:
            await asyncio.sleep(pause_s)
            try:
                await asyncio.to_thread(self._server.stop, 0.0)
                await self._start()
                await silent(self._server, self._store, self._settings.start_timeout_s)
            except CutawayError as failure:
                self._announce(f"TorchServe did not start: {failure.message.splitlines()[0]}")
            else:
                return True
        return False

    async def _start(self) -> None:
        self._starting = asyncio.ensure_future(asyncio.to_thread(self._server.start))
        await asyncio.shield(self._starting)

    async def _end(self) -> None:
        while self._server.poll() is None:  # noqa: ASYNC110  # a process tells nobody when it ends
            await asyncio.sleep(_LOOK_S)
