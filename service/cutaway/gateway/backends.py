"""What stands behind the front door: something that takes a model's bytes and returns a worker's."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from functools import partial
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, Protocol

from cutaway import hangups
from cutaway.channel import Inlet
from cutaway.errors import Reason, error
from cutaway.gateway.catalog import Catalog
from cutaway.gateway.replicas import Replicas
from cutaway.gateway.torchserve import Endpoint
from cutaway.gateway.turns import Row, Turns
from cutaway.gateway.watched import lineage
from cutaway.results import ModelName
from cutaway.routes import answered, batched, prediction, predictions, replies
from cutaway.wire.pieces import Piece, as_message
from cutaway.worker import Worker

_TURN_BYTES = 4 << 20
"""The most bytes that the calls of one turn have together: large ones gain nothing by company."""

_STREAMS = 8
"""How many replies in pieces may be on their way from one model behind TorchServe: its workers hold them meanwhile."""


class Backend(Protocol):
    """Answers questions about the models of its catalog."""

    catalog: Catalog

    @property
    def turns(self) -> Mapping[ModelName, Turns]:
        """The queues in front of the models, as far as there are any yet."""

    async def call(self, name: ModelName, kind: str, payload: bytes, timeout_s: float) -> bytes:
        """Ask model ``name``: ``inspect`` or ``describe`` with the question's bytes.

        Returns:
            A serialised `cutaway.v1.WorkerReply`.

        Raises:
            CutawayError: nothing came back.
        """

    def stream(self, name: ModelName, payload: bytes, timeout_s: float) -> AsyncGenerator[bytes, None]:
        """Ask model ``name`` the question of a serialised InspectStreamRequest.

        Yields:
            Serialised `cutaway.v1.InspectStreamResponse` messages, some of which may hold a failure.

        Raises:
            CutawayError: nothing came back.
        """

    async def close(self, grace_s: float) -> None:
        """Let go of what it holds; what still runs may go on for ``grace_s`` seconds."""


def _deadline(timeout_s: float) -> bytes:
    # Unix time: front door and workers share a machine, and so a clock.
    return f"{time.time() + timeout_s:.6f}".encode()


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
        message_bytes: int = _TURN_BYTES,
    ) -> None:
        self.catalog = catalog
        self._workers = workers
        self._calls = calls
        self._waiting = waiting
        self._turn_bytes = min(message_bytes, _TURN_BYTES)
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
            row = {**parts, "deadline": _deadline(timeout_s), hangups.PART: word, **lineage()}
            return await self.turns[name].call(row, timeout_s)

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


class Embedded:
    """Workers in this very process, one thread each: no Java, for notebooks, tests and a first try.

    Args:
        workers: the models.
        catalog: what can be asked for.
        waiting: calls that may wait for one model.
        calls: how many calls a worker takes at once at most.
    """

    def __init__(self, workers: Sequence[Worker], catalog: Catalog, *, waiting: int, calls: int) -> None:
        self.catalog = catalog
        self._desks = {worker.name: _Desk(worker) for worker in workers}
        self.turns = {
            name: Turns(desk.ask, workers=1, ahead=0, calls=calls, size=_TURN_BYTES, waiting=waiting)
            for name, desk in self._desks.items()
        }
        self._streams = {name: threading.BoundedSemaphore(waiting) for name in self._desks}
        self._hangups = hangups.HangUps()

    async def call(self, name: ModelName, kind: str, payload: bytes, timeout_s: float) -> bytes:
        """Wait for the model's turn, and ask."""
        with self._hangups.told(timeout_s) as word:
            row = {kind: payload, "deadline": _deadline(timeout_s), hangups.PART: word, **lineage()}
            return await self.turns[name].call(row, timeout_s)

    async def stream(self, name: ModelName, payload: bytes, timeout_s: float) -> AsyncGenerator[bytes, None]:
        """Wait for the model's turn, ask, and take piece by piece while the model goes on with the next question."""
        if not self._streams[name].acquire(blocking=False):
            raise error(Reason.OVERLOADED, "too many replies are on their way from this model already; try again")
        with self._hangups.told(timeout_s) as word:
            row = {"stream": payload, "deadline": _deadline(timeout_s), hangups.PART: word, **lineage()}
            answer = self._desks[name].begin(pieces := self._desks[name].worker.stream(row, held=False))
            try:
                piece = await asyncio.wait_for(asyncio.wrap_future(answer), timeout_s)
                while piece:
                    yield as_message(piece).joined()
                    piece = await asyncio.to_thread(next, pieces, None)
            except asyncio.TimeoutError:
                raise error(Reason.DEADLINE_EXCEEDED, "the deadline passed before the model answered") from None
            finally:
                answer.add_done_callback(lambda _: self._streams[name].release())  # at once, if it has ended

    async def close(self, grace_s: float) -> None:
        """End the threads once they have answered, or leave them behind after ``grace_s``."""
        await asyncio.gather(*(asyncio.to_thread(desk.close, grace_s) for desk in self._desks.values()))
        self._hangups.close()


class _Desk:
    """One worker and its one thread."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        # A daemon: a model that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name=f"cutaway-{worker.name.model}", daemon=True)
        self._thread.start()

    async def ask(self, rows: Sequence[Row], timeout_s: float) -> Sequence[bytes]:
        answers: Future[list[bytes]] = Future()
        self._jobs.put((partial(self.worker.answer, rows), answers))
        return await asyncio.wrap_future(answers)

    def begin(self, pieces: Iterator[Piece]) -> Future[Piece | None]:
        """The first of ``pieces``: the one that the model is needed for."""
        first: Future[Piece | None] = Future()
        self._jobs.put((partial(next, pieces), first))
        return first

    def close(self, grace_s: float) -> None:
        self._jobs.put(None)
        self._thread.join(grace_s)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, answer = job
            if answer.set_running_or_notify_cancel():
                answer.set_result(work())
