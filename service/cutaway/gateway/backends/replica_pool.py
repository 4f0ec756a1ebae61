"""The TorchServe processes that share the calls; a process that ends gets no calls until it is available again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias

import grpc.aio

from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.backends.load_balancing import CHECK_INTERVAL_S, MAX_FAILED_CHECKS, OPTIONS, pick
from cutaway.gateway.torchserve.server_process import Endpoint
from cutaway.results import ModelName
from cutaway.trust import bearer
from cutaway.worker_protocol.torchserve_messages import PING, PREDICTIONS, decode_error

Method: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"

_OPTIONS = (*OPTIONS, ("grpc.enable_http_proxy", 0))  # a proxy would read the token


class Replica:
    """One TorchServe process, called over its gRPC port; pinged until `close`.

    Args:
        endpoint: its address and token.
        hang_s: how long it may leave pings without a reply, in seconds.

    Attributes:
        endpoint: its address and token.
        available: whether it replies; while it does not, it gets no calls.
        hangs: whether it has left `MAX_FAILED_CHECKS` pings, and all of the last ``hang_s`` seconds, without a reply.
        under_way: its running batches by model.
    """

    def __init__(self, endpoint: Endpoint, hang_s: float) -> None:
        self.endpoint = endpoint
        self.available = True
        self.hangs = False
        self._ping_timeout_s = hang_s / MAX_FAILED_CHECKS
        self.under_way: Counter[ModelName] = Counter()
        self._metadata = bearer(endpoint.token)
        self._channel = grpc.aio.insecure_channel(endpoint.address, options=_OPTIONS)
        self._predictions: Method = self._channel.unary_unary(PREDICTIONS)
        self._ping: Method = self._channel.unary_unary(PING)
        self._calls: set[grpc.aio.UnaryUnaryCall[bytes, bytes]] = set()
        self._failed_pings = 0
        self._pings = asyncio.ensure_future(self._ping_forever())

    async def predict(self, name: ModelName, request: bytes, timeout_s: float) -> bytes:
        """Makes one Predictions call.

        Raises:
            CutawayError: ``BACKEND_UNAVAILABLE``, also if the process ends during the call; or TorchServe's error.
        """
        call = self._predictions(request, timeout=timeout_s, metadata=self._metadata)
        self._calls.add(call)
        self.under_way[name] += 1
        try:
            return await call
        except grpc.aio.AioRpcError as failure:
            if _broken(failure):
                self.mark_unavailable()
            code, _ = failure.code().value
            raise decode_error(code, failure.details() or "") from None
        except asyncio.CancelledError:
            if self.available:
                raise  # the caller cancelled
            raise error(
                Reason.BACKEND_UNAVAILABLE, "TorchServe ended, or replied to nothing, during this call"
            ) from None
        finally:
            self._calls.discard(call)
            self.under_way[name] -= 1

    def mark_unavailable(self) -> None:
        """Cancels its calls; it gets no others until it replies to a ping."""
        self.available = False
        for call in list(self._calls):
            call.cancel()

    async def close(self, grace_s: float) -> None:
        """Closes the connection; running calls get ``grace_s`` seconds to finish."""
        self._pings.cancel()
        if self._calls:
            await asyncio.wait({asyncio.ensure_future(_ended(call)) for call in self._calls}, timeout=grace_s)
        self.mark_unavailable()
        await self._channel.close()

    async def _ping_forever(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                await self._ping(b"", timeout=self._ping_timeout_s, metadata=self._metadata)
            except grpc.aio.AioRpcError as failure:
                timed_out = failure.code() == grpc.StatusCode.DEADLINE_EXCEEDED
                self._failed_pings += timed_out
                self.hangs = self._failed_pings >= MAX_FAILED_CHECKS
                if _broken(failure) or self.hangs:
                    self.mark_unavailable()
            else:
                self._failed_pings = 0
                self.available, self.hangs = True, False


def _broken(failure: grpc.aio.AioRpcError) -> bool:
    """Returns whether the connection failed, and not the call: TorchServe's own errors have a second line,
    with a Java class."""
    return failure.code() == grpc.StatusCode.UNAVAILABLE and "\n" not in (failure.details() or "")


async def _ended(call: grpc.aio.UnaryUnaryCall[bytes, bytes]) -> None:
    await call.code()


class ReplicaPool:
    """The TorchServe processes that share the calls.

    Args:
        endpoints: their addresses and tokens.
        hang_s: see `Replica`.
    """

    def __init__(self, endpoints: Iterable[Endpoint], hang_s: float) -> None:
        self._hang_s = hang_s
        self._all = [Replica(endpoint, hang_s) for endpoint in endpoints]

    @property
    def available(self) -> bool:
        """Whether any process is available."""
        return any(replica.available for replica in self._all)

    def find(self, endpoint: Endpoint) -> Replica | None:
        """Returns the process at ``endpoint``; None if it was removed."""
        return next((replica for replica in self._all if replica.endpoint == endpoint), None)

    async def predict(self, name: ModelName, request: bytes, timeout_s: float) -> bytes:
        """Makes one Predictions call; if its process is unavailable or ends, retries once on another one.

        Raises:
            CutawayError: ``BACKEND_UNAVAILABLE``, if no process is available; or TorchServe's error.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        first = self._next(name)
        if first is None:
            raise error(Reason.BACKEND_UNAVAILABLE, "TorchServe is being restarted")
        try:
            return await first.predict(name, request, timeout_s)
        except CutawayError as failure:
            another = self._next(name, besides=first) if failure.reason == Reason.BACKEND_UNAVAILABLE else None
            if another is None:
                raise
        return await another.predict(name, request, max(0.0, until - loop.time()))

    def _next(self, name: ModelName, besides: Replica | None = None) -> Replica | None:
        return pick(self._all, name, lambda replica: replica.available and replica is not besides)

    def add(self, endpoint: Endpoint) -> None:
        """Adds a process that is available."""
        self._all.append(Replica(endpoint, self._hang_s))

    async def remove(self, endpoint: Endpoint) -> None:
        """Removes the process at ``endpoint``, which has ended or hangs."""
        if replica := self.find(endpoint):
            self._all.remove(replica)
            await replica.close(0.0)

    async def replace(self, endpoints: Iterable[Endpoint], grace_s: float) -> None:
        """Replaces all processes; running calls get ``grace_s`` seconds, and are then retried on the new processes."""
        old, self._all = self._all, [Replica(endpoint, self._hang_s) for endpoint in endpoints]
        await asyncio.gather(*(replica.close(grace_s) for replica in old))
