"""Front doors on other machines, each with its own models, behind this one: calls are handed on as they are.

What goes past TorchServe on one machine, such as large replies and word of callers who hang up, gRPC carries between
front doors; and deadlines as spans of time, so that clocks may differ. TorchServe's own port can do none of that.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from types import MappingProxyType

import grpc.aio
import structlog
from grpc_health.v1 import health_pb2

from cutaway.errors import Code, CutawayError, Reason, error
from cutaway.gateway.catalog import Catalog
from cutaway.gateway.rota import following
from cutaway.gateway.turns import Turns
from cutaway.gateway.watched import lineage
from cutaway.results import ModelName
from cutaway.routes import SERVICE
from cutaway.trust import Trust
from cutaway.v1 import inspection_service_pb2, worker_pb2
from cutaway.wire import models as wire_models
from cutaway.wire import pieces, status
from cutaway.wire.glance import glance

log = structlog.get_logger(__name__)

_LOOK_S = 0.5
_PATIENCE_S = 5.0
_SILENCES = 2
"""Looks in a row without an answer, before it counts: a machine that is busy may be slow for a while."""

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_reconnect_backoff_ms", 1000),  # else one that is back would be noticed after two minutes
)
_METHODS = {"inspect": "Inspect", "describe": "GetModel"}
_PAGE = 1000
_ELSEWHERE = (Reason.BACKEND_UNAVAILABLE, Reason.OVERLOADED)
"""What may be otherwise at another front door."""


class Door:
    """One front door elsewhere; looked at until `close`.

    Args:
        address: where it listens.
        trust: how to call it.

    Attributes:
        answers: whether it does, and says that it serves.
        under_way: how many calls of each model it has.
        models: what it serves, as of when it last answered.
        why: what keeps it from answering.
    """

    def __init__(self, address: str, trust: Trust) -> None:
        self.answers = False
        self.under_way: Counter[ModelName] = Counter()
        self.models: frozenset[ModelName] = frozenset()
        self.why = f"{address} has not answered yet"
        self._address = address
        self._metadata = trust.metadata
        options = (*_OPTIONS, *trust.options)
        self._channel = (
            grpc.aio.secure_channel(address, trust.credentials, options)
            if trust.credentials
            else grpc.aio.insecure_channel(address, options)
        )
        self._silences = 0
        self._watch = asyncio.ensure_future(self._watched())

    async def ask(self, method: str, payload: bytes, timeout_s: float, name: ModelName) -> bytes:
        """One call of a method of `cutaway.v1.InspectionService`, about a model.

        Raises:
            CutawayError: ``BACKEND_UNAVAILABLE``, where it cannot be reached or does not know us; or what it says.
        """
        self.under_way[name] += 1
        try:
            return await self._called(f"/{SERVICE}/{method}", payload, timeout_s)
        finally:
            self.under_way[name] -= 1

    async def _called(self, path: str, payload: bytes, timeout_s: float) -> bytes:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(path)
        with self._told():
            return await call(payload, timeout=timeout_s, metadata=(*self._metadata, *_lineage()))

    async def stream(self, payload: bytes, timeout_s: float, name: ModelName) -> AsyncGenerator[bytes, None]:
        """The messages of an answer in pieces about a model; they come as they are taken.

        Raises:
            CutawayError: as for `ask`.
        """
        method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
        method = self._channel.unary_stream(f"/{SERVICE}/InspectStream")
        call = method(payload, timeout=timeout_s, metadata=(*self._metadata, *_lineage()))
        self.under_way[name] += 1
        try:
            with self._told():
                async for message in call:
                    yield message
        finally:
            self.under_way[name] -= 1
            call.cancel()

    async def close(self) -> None:
        """Hang up."""
        self._watch.cancel()
        await self._channel.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Every failed call that leaves the block becomes a `CutawayError`."""
        try:
            yield
        except grpc.aio.AioRpcError as failed:
            code, _ = failed.code().value
            failure = status.decode(code, failed.details() or "", _trailers(failed))
            if failure.reason == Reason.SERVER_UNREACHABLE:
                self._lose(failure.message)
            elif failure.code != Code.UNAUTHENTICATED:
                raise failure from None
            raise error(Reason.BACKEND_UNAVAILABLE, f"the front door behind this one: {failure.message}") from None

    def _lose(self, why: str) -> None:
        if self.answers:
            log.warning("a front door behind this one answers no more", address=self._address, why=why)
        self.answers = False
        self.why = f"{self._address}: {why}"

    async def _watched(self) -> None:
        while True:
            try:
                await self._look()
            except CutawayError as failure:
                self._silences += 1
                if failure.reason != Reason.DEADLINE_EXCEEDED or self._silences >= _SILENCES:
                    self._lose(failure.message)
            await asyncio.sleep(_LOOK_S)

    async def _look(self) -> None:
        asked = health_pb2.HealthCheckRequest(service=SERVICE).SerializeToString()
        reply = await self._called("/grpc.health.v1.Health/Check", asked, _PATIENCE_S)
        if health_pb2.HealthCheckResponse.FromString(reply).status != health_pb2.HealthCheckResponse.SERVING:
            raise error(Reason.BACKEND_UNAVAILABLE, "it says that it does not serve")
        self.models = frozenset([name async for name in self._listed()])
        self._silences = 0
        if not self.answers:
            log.info("a front door behind this one answers", address=self._address)
        self.answers = True

    async def _listed(self) -> AsyncIterator[ModelName]:
        token = ""
        while True:
            request = inspection_service_pb2.ListModelsRequest(page_size=_PAGE, page_token=token)
            reply = await self._called(f"/{SERVICE}/ListModels", request.SerializeToString(), _PATIENCE_S)
            page = inspection_service_pb2.ListModelsResponse.FromString(reply)
            for model in page.models:
                yield wire_models.decode_name(model)
            if not (token := page.next_page_token):
                return


class Doors:
    """A backend of front doors elsewhere, which share the calls.

    Args:
        trusts: where they listen, and how to call each.
    """

    def __init__(self, trusts: Mapping[str, Trust]) -> None:
        self._all = [Door(address, trust) for address, trust in trusts.items()]
        self.catalog = Catalog(())
        self.turns: Mapping[ModelName, Turns] = MappingProxyType({})  # they wait where they are answered

    @property
    def answer(self) -> bool:
        """Whether any of them does."""
        return any(each.answers for each in self._all)

    @property
    def why(self) -> str:
        """What keeps those that do not."""
        return "; ".join(each.why for each in self._all if not each.answers)

    def look(self) -> bool:
        """Read what they serve; whether that is something else than before."""
        before = self.catalog.all()
        self.catalog = Catalog(frozenset[ModelName]().union(*(each.models for each in self._all)))
        return self.catalog.all() != before

    async def call(self, name: ModelName, kind: str, payload: bytes, timeout_s: float) -> bytes:
        """Hand on a question; once more to another, where one cannot take it."""
        until = time.monotonic() + timeout_s
        since = time.perf_counter()
        asked = payload + _pinned(name)
        door = self._next(name)
        try:
            response = await door.ask(_METHODS[kind], asked, timeout_s, name)
        except CutawayError as failure:
            door = self._instead(name, door, failure)
            response = await door.ask(_METHODS[kind], asked, max(until - time.monotonic(), 0.0), name)
        waited_ms = glance(response).stages.get("queue", 0.0) if kind == "inspect" else 0.0
        worker_ms = (time.perf_counter() - since) * 1000 - waited_ms
        return worker_pb2.WorkerReply(response=response, worker_ms=worker_ms).SerializeToString()

    async def stream(self, name: ModelName, payload: bytes, timeout_s: float) -> AsyncGenerator[bytes, None]:
        """Hand on a question whose answer comes in pieces; once more to another, until the first piece came."""
        until = time.monotonic() + timeout_s
        question = pieces.question(payload)
        question.request += _pinned(name)
        asked = question.SerializeToString()
        door, begun = self._next(name), False
        try:
            async with aclosing(door.stream(asked, timeout_s, name)) as messages:
                async for message in messages:
                    begun = True
                    yield message
            return
        except CutawayError as failure:
            if begun:
                raise
            door = self._instead(name, door, failure)
        async with aclosing(door.stream(asked, max(until - time.monotonic(), 0.0), name)) as messages:
            async for message in messages:
                yield message

    async def close(self, grace_s: float) -> None:
        """Hang up."""
        await asyncio.gather(*(each.close() for each in self._all))

    def _next(self, name: ModelName) -> Door:
        door = following(self._all, name, lambda each: each.answers and name in each.models)
        if door is None:
            raise error(Reason.BACKEND_UNAVAILABLE, f"no front door behind this one answers: {self.why}")
        return door

    def _instead(self, name: ModelName, door: Door, failure: CutawayError) -> Door:
        """Another one, after what happened at ``door``.

        Raises:
            CutawayError: ``failure``, where it would be the same elsewhere, or there is no other.
        """
        other = following(self._all, name, lambda each: each.answers and name in each.models and each is not door)
        if failure.reason not in _ELSEWHERE or other is None:
            raise failure
        return other


def _pinned(name: ModelName) -> bytes:
    """What is appended to a question, so that the version is asked that was resolved, and looked up for the caller,
    here: of a field that comes twice, the last one counts."""
    return worker_pb2.RoutedRequest(model=f"{name.model}/versions/{name.version}").SerializeToString()


def _trailers(failed: grpc.aio.AioRpcError) -> list[tuple[str, str | bytes]]:
    return [(key, value) for key, value in failed.trailing_metadata() or ()]


def _lineage() -> Iterator[tuple[str, str]]:
    """The span that a call belongs to: the front door behind reads it as from any caller."""
    return ((name, word.decode()) for name, word in lineage().items())
