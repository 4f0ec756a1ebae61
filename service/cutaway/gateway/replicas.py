"""TorchServes that share the calls: which of them answer, and what becomes of a call when one ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias

import grpc.aio

from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.rota import following
from cutaway.gateway.torchserve import Endpoint
from cutaway.results import ModelName
from cutaway.routes import TORCHSERVE_PING, TORCHSERVE_PREDICTIONS, torchserve_failure
from cutaway.trust import bearer

Method: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"

_LOOK_S = 0.5
_PING_S = 5.0
_SILENCES = 2
"""Pings in a row without an answer, before it counts: a machine that is busy may be slow for a while."""

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),  # which would read the token
    ("grpc.max_reconnect_backoff_ms", 1000),  # else one that is back would be noticed after two minutes
)


class Replica:
    """One TorchServe, called over its gRPC port; pinged until `close`.

    Args:
        endpoint: where it listens.

    Attributes:
        endpoint: the same.
        answers: whether it does; while it does not, it is not asked.
        under_way: how many turns of each model it has.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.answers = True
        self.under_way: Counter[ModelName] = Counter()
        self._metadata = bearer(endpoint.token)
        self._channel = grpc.aio.insecure_channel(endpoint.address, options=_OPTIONS)
        self._predict: Method = self._channel.unary_unary(TORCHSERVE_PREDICTIONS)
        self._ping: Method = self._channel.unary_unary(TORCHSERVE_PING)
        self._calls: set[grpc.aio.UnaryUnaryCall[bytes, bytes]] = set()
        self._silences = 0
        self._watch = asyncio.ensure_future(self._watched())

    async def ask(self, name: ModelName, request: bytes, timeout_s: float) -> bytes:
        """One Predictions call.

        Raises:
            CutawayError: ``BACKEND_UNAVAILABLE``, also where it stopped answering meanwhile; or what it says.
        """
        call = self._predict(request, timeout=timeout_s, metadata=self._metadata)
        self._calls.add(call)
        self.under_way[name] += 1
        try:
            return await call
        except grpc.aio.AioRpcError as failure:
            if _broken(failure):
                self.lose()
            code, _ = failure.code().value
            raise torchserve_failure(code, failure.details() or "") from None
        except asyncio.CancelledError:
            if self.answers:
                raise  # whoever asked has stopped waiting
            raise error(Reason.BACKEND_UNAVAILABLE, "the TorchServe that had this call answers no more") from None
        finally:
            self._calls.discard(call)
            self.under_way[name] -= 1

    def lose(self) -> None:
        """It answers no more: calls that it has end, and it gets no others until it answers a ping."""
        self.answers = False
        for call in list(self._calls):
            call.cancel()

    async def close(self, grace_s: float) -> None:
        """Hang up; what it has may take ``grace_s`` seconds, and is lost then."""
        self._watch.cancel()
        if self._calls:
            await asyncio.wait({asyncio.ensure_future(_ended(call)) for call in self._calls}, timeout=grace_s)
        self.lose()
        await self._channel.close()

    async def _watched(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._look()

    async def _look(self) -> None:
        try:
            await self._ping(b"", timeout=_PING_S, metadata=self._metadata)
        except grpc.aio.AioRpcError as failure:
            self._silences += 1
            if _broken(failure) or self._silences >= _SILENCES:
                self.lose()
        else:
            self._silences = 0
            self.answers = True


def _broken(failure: grpc.aio.AioRpcError) -> bool:
    """Whether nobody is there, rather than one who says that something is amiss: TorchServe's own words have two
    lines, of which the second is a Java class."""
    return failure.code() == grpc.StatusCode.UNAVAILABLE and "\n" not in (failure.details() or "")


async def _ended(call: grpc.aio.UnaryUnaryCall[bytes, bytes]) -> None:
    await call.code()


class Replicas:
    """Those that share the calls.

    Args:
        endpoints: where they listen.
    """

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._all = [Replica(endpoint) for endpoint in endpoints]

    @property
    def answer(self) -> bool:
        """Whether any of them does."""
        return any(each.answers for each in self._all)

    async def ask(self, name: ModelName, request: bytes, timeout_s: float) -> bytes:
        """One Predictions call at whose turn it is; where that one cannot be reached or is lost, once more at another.

        Raises:
            CutawayError: ``BACKEND_UNAVAILABLE``, where none is left; or what TorchServe says.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        first = self._next(name)
        if first is None:
            raise error(Reason.BACKEND_UNAVAILABLE, "TorchServe ended by itself and is being started again")
        try:
            return await first.ask(name, request, timeout_s)
        except CutawayError as failure:
            another = self._next(name, besides=first) if failure.reason == Reason.BACKEND_UNAVAILABLE else None
            if another is None:
                raise
        return await another.ask(name, request, max(0.0, until - loop.time()))

    def _next(self, name: ModelName, besides: Replica | None = None) -> Replica | None:
        return following(self._all, name, lambda each: each.answers and each is not besides)

    def join(self, endpoint: Endpoint) -> None:
        """One more, which answers."""
        self._all.append(Replica(endpoint))

    async def leave(self, endpoint: Endpoint) -> None:
        """The one at ``endpoint`` has ended."""
        for each in [each for each in self._all if each.endpoint == endpoint]:
            self._all.remove(each)
            await each.close(0.0)

    async def replace(self, endpoints: Iterable[Endpoint], grace_s: float) -> None:
        """Others, from now on; calls under way may take ``grace_s`` seconds where they are, and are then asked here."""
        gone, self._all = self._all, [Replica(endpoint) for endpoint in endpoints]
        await asyncio.gather(*(each.close(grace_s) for each in gone))
