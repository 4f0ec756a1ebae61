"""TorchServes over one store that share its calls, each kept running: one that ends by itself is started again while
the others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import chain, repeat
from typing import TypeAlias

from cutaway.errors import CutawayError
from cutaway.gateway.replicas import Replicas
from cutaway.gateway.starting import silent
from cutaway.gateway.store import Store
from cutaway.gateway.torchserve import Endpoint, TorchServe
from cutaway.results import ModelName
from cutaway.settings import Settings

Announce: TypeAlias = Callable[[str], None]

_LOOK_S = 0.1
_PAUSES_S = (0.0, 1.0, 2.0, 5.0, 10.0)
"""Before each attempt at starting one again. After the last one that fails, nobody tries any more where no other
answers: whoever watches over this process then knows better."""


class Fleet:
    """As many TorchServes over a store as the settings say.

    Args:
        store: the models.
        settings: limits, and how long a start may take.
        workers: worker processes for each model in each TorchServe; None is what each archive says.
        announce: told what happens, line by line.

    Attributes:
        store: the same.
    """

    def __init__(self, store: Store, settings: Settings, workers: int | None, announce: Announce) -> None:
        self.store = store
        self._settings = settings
        self._announce = announce
        self._servers = {self._name(number): self._server(workers, number) for number in range(settings.replicas)}
        self._keeping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starting: set[asyncio.Future[None]] = set()

    def _name(self, number: int) -> str:
        return "TorchServe" if self._settings.replicas == 1 else f"TorchServe {number + 1}"

    def _server(self, workers: int | None, number: int) -> TorchServe:
        archives = list(self.store.archives.values())
        return TorchServe(
            archives[0].parent,
            [path.name for path in archives],
            workers=workers,
            batch=1,  # the front door gathers them, and lets nobody wait for company
            max_message_bytes=self._settings.max_message_bytes,
            log_dir=self._settings.log_dir,
            number=number,
            of=self._settings.replicas,
            start_timeout_s=self._settings.start_timeout_s,
        )

    @property
    def endpoints(self) -> list[Endpoint]:
        """Where they listen."""
        return [server.inference for server in self._servers.values()]

    async def start(self) -> None:
        """Every model of the store that can has answered at each of them afterwards, the others are given up.

        Raises:
            CutawayError: one does not start, or no model answers.
        """
        found = await asyncio.gather(*map(self._started, self._servers.values()))
        for name, why in {name: why for silences in found for name, why in silences.items()}.items():
            self._announce(self.store.give_up(name, why))
        self.store.refuse_none()

    async def _started(self, server: TorchServe) -> dict[ModelName, str]:
        await self._thread(server.start)
        return await silent(server, self.store, self._settings.start_timeout_s)

    def keep(self, replicas: Replicas) -> None:
        """From now on, whichever ends by itself leaves ``replicas``, is started again, and joins them again."""
        self._keeping = asyncio.ensure_future(self._keep_all(replicas))

    async def _keep_all(self, replicas: Replicas) -> None:
        await asyncio.gather(*(self._keep(*each, replicas) for each in self._servers.items()))

    def let_be(self) -> None:
        """From now on, whichever ends has ended."""
        self._keeping.cancel()

    @property
    def lost(self) -> bool:
        """Whether none is left, nor could be started again."""
        return self._keeping.done()

    async def _keep(self, name: str, server: TorchServe, replicas: Replicas) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            if server.poll() is None:
                continue
            self._announce(f"{name} ended by itself; its log says why; starting it again")
            await replicas.leave(server.inference)
            if not await self._again(name, server, replicas):
                return
            replicas.join(server.inference)
            self._announce(f"{name} answers again")

    async def _again(self, name: str, server: TorchServe, replicas: Replicas) -> bool:
        for attempt, pause_s in enumerate(chain(_PAUSES_S, repeat(_PAUSES_S[-1])), 1):
            await asyncio.sleep(pause_s)
            try:
                await self._thread(lambda: _restart(server))
                await silent(server, self.store, self._settings.start_timeout_s)
            except CutawayError as failure:
                self._announce(f"{name} did not start: {failure.message.splitlines()[0]}")
                if attempt >= len(_PAUSES_S) and not replicas.answer:
                    return False
            else:
                break
        return True

    async def _thread(self, work: Callable[[], None]) -> None:
        """In a thread, which `end` waits for where nobody else does any more."""
        future = asyncio.ensure_future(asyncio.to_thread(work))
        self._starting.add(future)
        future.add_done_callback(self._starting.discard)
        await asyncio.shield(future)

    async def end(self, grace_s: float) -> None:
        """Nothing of them is left; calls under way may take ``grace_s`` seconds."""
        self.let_be()
        # A start that is given up half-way must end before what it started can be ended.
        if self._starting:
            await asyncio.wait(self._starting)
        await asyncio.gather(*(asyncio.to_thread(server.stop, grace_s) for server in self._servers.values()))


def _restart(server: TorchServe) -> None:
    server.stop(0.0)
    server.start()
