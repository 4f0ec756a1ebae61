"""TorchServe, kept running and up to date: where the model store changes, another one is started beside the old one and
takes over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

from cutaway import archive
from cutaway.errors import CutawayError
from cutaway.gateway.fleet import Announce, Fleet
from cutaway.gateway.relay import Relay
from cutaway.gateway.store import Store, look_into
from cutaway.results import ModelName
from cutaway.settings import Settings

Serving: TypeAlias = Callable[[bool], Awaitable[None]]
"""Told whether calls can be answered."""

_LOOK_S = 0.1
_SETTLED_S = 1.0
"""For how long a model store must stay as it is before it is read: an archive takes a while to be written."""


class Supervisor:
    """The TorchServes over one store, and the relay to them.

    Args:
        store: the models.
        settings: how many TorchServes, limits, and how long a start may take.
        workers: worker processes for each model in each TorchServe; None is what each archive says.
        announce: told what happens, line by line.

    Attributes:
        relay: where calls go; the same one whichever TorchServes are behind it.
    """

    def __init__(self, store: Store, settings: Settings, workers: int | None, announce: Announce) -> None:
        self._directory = next(iter(store.archives.values())).parent
        self._settings = settings
        self._workers = workers
        self._announce = announce
        self._fleet = self._over(store)
        self._fleets = [self._fleet]
        self._known = self._seen = _Look.at(self._directory)
        self.relay: Relay

    def _over(self, store: Store) -> Fleet:
        return Fleet(store, self._settings, self._workers, self._announce)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """TorchServe runs, and every model that can has answered, when the block begins; nothing of it is left when
        the block has ended, also where it is left amid a start.

        Raises:
            CutawayError: TorchServe does not start, or no model answers.
        """
        several = "" if self._settings.replicas == 1 else f" {self._settings.replicas} times"
        self._announce(f"starting TorchServe{several}; its log is in {self._settings.log_dir}")
        try:
            await self._fleet.start()
            self.relay = Relay(
                self._fleet.endpoints,
                self._fleet.store.catalog,
                workers=self._copies(self._fleet.store),
                calls=self._settings.batch,
                waiting=self._settings.queue,
                message_bytes=self._settings.max_message_bytes,
            )
            yield
        finally:
            await self._end(list(self._fleets), self._settings.grace_s)

    async def keep(self, serving: Serving) -> None:
        """Start each TorchServe again whenever it ends by itself, and all anew whenever the model store has changed;
        return where none is left that can be started.

        Args:
            serving: told when no call can be answered any longer, and when calls can be again.
        """
        self._fleet.keep(self.relay.replicas)
        following = asyncio.ensure_future(self._follow(serving))
        told = True
        try:
            while not (following.done() or self._fleet.lost):
                await asyncio.sleep(_LOOK_S)
                if self.relay.replicas.answer != told:
                    told = not told
                    await serving(told)
        finally:
            following.cancel()
            await asyncio.wait([following])
        if not following.cancelled():
            following.result()

    async def _follow(self, serving: Serving) -> None:
        """Whenever the model store has changed, others over what is in it now take over."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._changed():
                await self._renew(serving)

    async def _renew(self, serving: Serving) -> None:
        """Others, over what is in the store now, in place of those that run; these stay where that fails."""
        self._announce("the model store has changed; loading it beside what is served")
        old = self._fleet
        try:
            store = look_into(self._directory)
            for why in store.faults:
                self._announce(f"not served: {why}")
            fleet = self._over(store)
            self._fleets.append(fleet)
            await fleet.start()
        except CutawayError as failure:
            self._announce(f"what was served is served on: {failure.message.splitlines()[0]}")
            await self._end([each for each in self._fleets if each is not old], 0.0)
            return
        self._fleet = fleet
        old.let_be()
        fleet.keep(self.relay.replicas)
        # Calls that are on their way end where they began; all others go to the new ones.
        await self.relay.move(fleet.endpoints, store.catalog, self._copies(store), self._settings.grace_s)
        await serving(True)  # of models that are new, nobody has been told
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

    async def _end(self, fleets: Sequence[Fleet], grace_s: float) -> None:
        for fleet in fleets:
            await fleet.end(grace_s)
            self._fleets.remove(fleet)

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
