"""The backend in front of TorchServe."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from types import MappingProxyType

from cutaway import hangups
from cutaway.channel import Inlet
from cutaway.errors import Reason, error
from cutaway.gateway.backends import TURN_BYTES, a_row
from cutaway.gateway.catalog import Catalog
from cutaway.gateway.replicas import Replicas
from cutaway.gateway.torchserve import Endpoint
from cutaway.gateway.turns import Row, Turns
from cutaway.results import ModelName
from cutaway.routes import answered, batched, prediction, predictions, replies

_STREAMS = 8
"""How many replies in pieces may be on their way from one model: its workers hold them meanwhile."""


class Relay:
    """Hands calls on to TorchServes over their gRPC ports.

    Args:
        endpoints: where their inference services listen; all of them serve the same models.
        catalog: what they serve.
        workers: how many workers each model has in each of them; by default one.
        calls: how many calls a worker takes at once at most.
        waiting: calls that may wait for one model.
        message_bytes: the largest message that they take.

    Attributes:
        replicas: those that share the calls.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        catalog: Catalog,
        *,
        workers: Mapping[ModelName, int] = MappingProxyType({}),
        calls: int = 1,
        waiting: int = 1,
        message_bytes: int = TURN_BYTES,
    ) -> None:
        self.catalog = catalog
        self._workers = workers
        self._calls = calls
        self._waiting = waiting
        self._turn_bytes = min(message_bytes, TURN_BYTES)
        self.turns: dict[ModelName, Turns] = {}
        self.replicas = Replicas(endpoints)
        self._count = len(endpoints)
        self._streams: defaultdict[ModelName, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_STREAMS))
        self._hangups = hangups.HangUps()

    async def move(
        self, endpoints: Sequence[Endpoint], catalog: Catalog, workers: Mapping[ModelName, int], grace_s: float
    ) -> None:
        """What is served is ``catalog``, by the TorchServes at ``endpoints``, from now on.

        Args:
            endpoints: as for the relay.
            catalog: as for the relay.
            workers: as for the relay.
            grace_s: how long calls on their way may take at those before; they are asked once more then.
        """
        self.catalog, self._workers = catalog, workers
        await self.replicas.replace(endpoints, grace_s)

    async def call(self, name: ModelName, kind: str, payload: bytes, timeout_s: float) -> bytes:
        """Wait for a turn, and ask."""
        return await self._turn(name, {kind: payload}, timeout_s)

    async def _turn(self, name: ModelName, parts: Row, timeout_s: float) -> bytes:
        if name not in self.turns:
            # One more than there are workers: what comes next is at hand when one of them is done.
            self.turns[name] = Turns(
                partial(self._ask, name),
                workers=self._workers.get(name, 1) * self._count,
                ahead=self._count,
                calls=self._calls,
                size=self._turn_bytes,
                waiting=self._waiting,
            )
        with self._hangups.told(timeout_s) as word:
            return await self.turns[name].call(a_row(parts, timeout_s, word), timeout_s)

    async def _ask(self, name: ModelName, rows: Sequence[Row], timeout_s: float) -> Sequence[bytes]:
        """One Predictions call, with the deadlines both on the call and inside it: TorchServe passes no metadata on."""
        request = predictions(name.model, name.version, rows[0] if len(rows) == 1 else {"batch": batched(rows)})
        reply = prediction(await self.replicas.ask(name, request, timeout_s))
        return [reply] if len(rows) == 1 else replies(reply)

    async def stream(self, name: ModelName, payload: bytes, timeout_s: float) -> AsyncGenerator[bytes, None]:
        """Wait for a turn, and ask; the answer comes past TorchServe, while the model goes on."""
        until = time.time() + timeout_s
        try:
            await asyncio.wait_for(self._streams[name].acquire(), timeout_s)
        except asyncio.TimeoutError:
            raise error(Reason.DEADLINE_EXCEEDED, "the deadline passed while other replies were on their way") from None
        try:
            with Inlet() as inlet:
                parts = {"stream": payload, "pipe": bytes(inlet.path)}
                answered(await self._turn(name, parts, until - time.time()))
                inlet.accept()
                async with aclosing(inlet.messages(until)) as messages:
                    async for message in messages:
                        yield message
        finally:
            self._streams[name].release()

    async def close(self, grace_s: float = 0.0) -> None:
        """Hang up."""
        await self.replicas.replace((), grace_s)
        self._hangups.close()
