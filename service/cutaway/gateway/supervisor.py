"""TorchServe, kept running: where it ends by itself it is started again; where the model store changes, another one is
started beside it, takes over, and the old one ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

from cutaway import archive
from cutaway.errors import CutawayError
from cutaway.gateway.backends import Relay
from cutaway.gateway.starting import silent
from cutaway.gateway.store import Store, look_into
from cutaway.gateway.torchserve import TorchServe
from cutaway.results import ModelName
from cutaway.settings import Settings

Announce: TypeAlias = Callable[[str], None]
Serving: TypeAlias = Callable[[bool], Awaitable[None]]
"""Told whether calls can be answered."""

_LOOK_S = 0.1
_SETTLED_S = 1.0
"""For how long a model store must stay as it is before it is read: an archive takes a while to be written."""

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
        relay: where calls go; the same one whichever TorchServe is behind it.
    """

    def __init__(self, store: Store, settings: Settings, workers: int | None, announce: Announce) -> None:
        self._store = store
        self._directory = next(iter(store.archives.values())).parent
        self._settings = settings
        self._workers = workers
        self._announce = announce
        self._server = self._over(store)
        self._servers = [self._server]
        self._starting: asyncio.Future[None] | None = None
        self._known = self._seen = _Look.at(self._directory)
        self.relay: Relay

    def _over(self, store: Store) -> TorchServe:
        return TorchServe(
            self._directory,
            [path.name for path in store.archives.values()],
            workers=self._workers,
            batch=1,  # the front door gathers them, and lets nobody wait for company
            max_message_bytes=self._settings.max_message_bytes,
            log_dir=self._settings.log_dir,
            start_timeout_s=self._settings.start_timeout_s,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """TorchServe runs, and every model that can has answered, when the block begins; nothing of it is left when
        the block has ended, also where it is left amid a start.

        Raises:
            CutawayError: TorchServe does not start, or no model answers.
        """
        self._announce(f"starting TorchServe; its log is in {self._settings.log_dir}")
        try:
            await self._answering(self._server, self._store)
            self.relay = Relay(
                self._server.inference_address,
                self._store.catalog,
                workers=self._copies(self._store),
                calls=self._settings.batch,
                waiting=self._settings.queue,
                message_bytes=self._settings.max_message_bytes,
            )
            yield
        finally:
            # A start that is given up half-way must end before what it started can be ended.
            if self._starting is not None:
                await asyncio.wait([self._starting])
            await self._end(list(self._servers), self._settings.grace_s)

    async def keep(self, serving: Serving) -> None:
        """Start TorchServe again whenever it ends by itself, and anew whenever the model store has changed; return
        where it cannot be started any more.

        Args:
            serving: told when calls can no longer be answered, and when they can (again).
        """
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._server.poll() is not None:
                self._announce("TorchServe ended by itself; its log says why; starting it again")
                self.relay.lose()
                await serving(False)
                if not await self._again():
                    return
                await self.relay.move(self._server.inference_address, self._store.catalog, self._copies(self._store))
                await serving(True)
                self._announce("TorchServe answers again")
            elif self._changed():
                await self._renew(serving)

    async def _again(self) -> bool:
        for pause_s in _PAUSES_S:
            await asyncio.sleep(pause_s)
            try:
                await asyncio.to_thread(self._server.stop, 0.0)
                await self._start(self._server)
                await silent(self._server, self._store, self._settings.start_timeout_s)
            except CutawayError as failure:
                self._announce(f"TorchServe did not start: {failure.message.splitlines()[0]}")
            else:
                return True
        return False

    async def _renew(self, serving: Serving) -> None:
        """Another TorchServe, over what is in the store now, in place of this one; it stays where that fails."""
        self._announce("the model store has changed; loading it beside what is served")
        old = self._server
        try:
            store = look_into(self._directory)
            for why in store.faults:
                self._announce(f"not served: {why}")
            server = self._over(store)
            self._servers.append(server)
            await self._answering(server, store)
        except CutawayError as failure:
            self._announce(f"what was served is served on: {failure.message.splitlines()[0]}")
            await self._end([each for each in self._servers if each is not old], 0.0)
            return
        self._server, self._store = server, store
        # Calls that are on their way end where they began; all others go to the new one.
        await self.relay.move(
            server.inference_address, store.catalog, self._copies(store), grace_s=self._settings.grace_s
        )
        await serving(True)
        await self._end([old], self._settings.grace_s)
        for name in store.archives:
            self._announce(f"serving {name.model} {name.version}")

    def _changed(self) -> bool:
        """Whether the store differs from the one that was last read, and has stayed so for a while."""
        look = _Look.at(self._directory)
        if look.files != self._seen.files:
            self._seen = look
        if self._seen.files == self._known.files or look.when - self._seen.when < _SETTLED_S:
            return False
        self._known = self._seen
        return True

    async def _answering(self, server: TorchServe, store: Store) -> None:
        """Start ``server``; every model of ``store`` that can has answered afterwards, the others are given up."""
        await self._start(server)
        for name, why in (await silent(server, store, self._settings.start_timeout_s)).items():
            self._announce(store.give_up(name, why))
        store.refuse_none()

    async def _start(self, server: TorchServe) -> None:
        self._starting = asyncio.ensure_future(asyncio.to_thread(server.start))
        await asyncio.shield(self._starting)

    async def _end(self, servers: Sequence[TorchServe], grace_s: float) -> None:
        for server in servers:
            await asyncio.to_thread(server.stop, grace_s)
            self._servers.remove(server)

    def _copies(self, store: Store) -> dict[ModelName, int]:
        return {name: self._workers or archive.workers(path) for name, path in store.archives.items()}


class _Look:
    """What a model store looked like, and when: each archive's name, size and time of change."""

    def __init__(self, files: frozenset[tuple[str, int, int]], when: float) -> None:
        self.files = files
        self.when = when

    @classmethod
    def at(cls, directory: Path) -> _Look:
        found = set()
        for path in directory.glob("*.mar"):
            try:
                status = path.stat()
            except OSError:  # it went in between
                continue
            found.add((path.name, status.st_size, status.st_mtime_ns))
        return cls(frozenset(found), time.monotonic())
