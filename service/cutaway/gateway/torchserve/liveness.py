"""Whether a TorchServe process replies: pinged again and again on its gRPC port."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import grpc.aio

from cutaway.trust import bearer
from cutaway.worker_protocol.torchserve_messages import PING

_INTERVAL_S = 0.5
_MAX_FAILED_PINGS = 2
"""Pings in a row without a reply until a process hangs: a busy machine may be slow for a while."""

_OPTIONS = (
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),  # a proxy would read the token
)


class Endpoint(NamedTuple):
    """The address of a TorchServe process, and the token for its calls."""

    address: str
    token: str


class Pings:
    """Pings one process until `close`.

    Args:
        endpoint: its address and token.
        hang_s: how long it may leave pings without a reply, in seconds.

    Attributes:
        hangs: whether it has left the last pings, and all for ``hang_s`` seconds, without a reply.
    """

    def __init__(self, endpoint: Endpoint, hang_s: float) -> None:
        self.hangs = False
        self._timeout_s = hang_s / _MAX_FAILED_PINGS
        self._metadata = bearer(endpoint.token)
        self._channel = grpc.aio.insecure_channel(endpoint.address, options=_OPTIONS)
        self._ping: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(PING)
        self._pings = asyncio.ensure_future(self._ping_forever())

    async def close(self) -> None:
        """Ends the pings."""
        self._pings.cancel()
        await self._channel.close()

    async def _ping_forever(self) -> None:
        failed = 0
        while True:
            await asyncio.sleep(_INTERVAL_S)
            try:
                await self._ping(b"", timeout=self._timeout_s, metadata=self._metadata)
            except grpc.aio.AioRpcError as failure:
                failed += failure.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            else:
                failed = 0
            self.hangs = failed >= _MAX_FAILED_PINGS
