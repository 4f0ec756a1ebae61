"""The gateway's gRPC server: the inspection service, health checks and reflection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import grpc
import grpc.aio
from google.protobuf.descriptor_pool import Default, DescriptorPool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from cutaway.contract.errors import Reason, error
from cutaway.server.auth.tls import server_credentials
from cutaway.server.auth.tokens import Authenticator
from cutaway.server.listening import check_addresses, name_of
from cutaway.server.rpc.guard import ReflectionGuard, TimeLimitedServices
from cutaway.server.settings import Settings

_MAX_MESSAGE_BYTES = 2**31 - 1  # gRPC's own limit
_STATES = (health_pb2.HealthCheckResponse.NOT_SERVING, health_pb2.HealthCheckResponse.SERVING)
_MIN_STREAMS = 1024
_KEEPALIVE_MS = 60_000
_MIN_PING_INTERVAL_MS = 10_000


def _options(settings: Settings) -> list[tuple[str, int]]:
    """Returns gRPC's options. A connection has no greatest age: its calls may take a day, and then end in order."""
    return [
        # Accepts requests slightly above the limit, so that the error can name the limit.
        ("grpc.max_receive_message_length", min(2 * settings.max_message_bytes, _MAX_MESSAGE_BYTES)),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),  # else a second server on the port gets half of the calls
        # More calls of one connection than are refused as too many; the client holds others back.
        ("grpc.max_concurrent_streams", max(_MIN_STREAMS, 4 * settings.max_queue_length)),
        ("grpc.server_handshake_timeout_ms", round(settings.receive_timeout_s * 1000)),
        ("grpc.max_connection_idle_ms", round(settings.idle_timeout_s * 1000)),
        # A caller who vanished answers no ping. An honest one may ping during a long call, and between calls.
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
    ]


class GrpcService(NamedTuple):
    """A gRPC service of a server.

    Attributes:
        name: its full name.
        handlers: the handlers of its calls.
        pool: the descriptor pool for reflection; None for Python's own.
    """

    name: str
    handlers: Sequence[grpc.GenericRpcHandler]
    pool: DescriptorPool | None = None


class GrpcServer:
    """A gRPC server of the running event loop.

    Args:
        services: answer the calls.
        authenticator: returns the caller, who may see the service by reflection.
        settings: address and limits.

    Attributes:
        address: the ``host:port`` that the server listens on.
    """

    def __init__(self, services: Sequence[GrpcService], authenticator: Authenticator, settings: Settings) -> None:
        self._services = services
        self._settings = settings
        self._health = health.aio.HealthServicer()
        self._credentials = server_credentials(settings)
        self._server = grpc.aio.server(
            interceptors=(ReflectionGuard(authenticator),) if settings.tokens else (),  # one slows every call
            options=_options(settings),
        )
        self.address = ""

    async def start(self) -> None:
        """Starts to listen, and sets `address`.

        Raises:
            CutawayError: the address is not available.
        """
        for service in self._services:
            self._server.add_generic_rpc_handlers(service.handlers)
        limited: Any = TimeLimitedServices(self._settings.receive_timeout_s)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, limited)
        names = [*(service.name for service in self._services), health.SERVICE_NAME, reflection.SERVICE_NAME]
        pools: Any = _Pools(service.pool for service in self._services if service.pool)
        add_reflection: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server  # without types
        add_reflection(reflection.aio.ReflectionServicer(names, pools), limited)
        self._server.add_generic_rpc_handlers([limited])
        address = self._settings.address
        check_addresses({"CUTAWAY_ADDRESS": address})  # gRPC reads other forms too, and gives no reason
        try:
            if self._credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, self._credentials)
        except RuntimeError as failure:
            raise error(
                Reason.BACKEND_UNAVAILABLE, f"cannot listen on {address}: {failure}", "CUTAWAY_ADDRESS"
            ) from None
        self.address = name_of(address, port)
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Accepts no more calls, gives running calls ``grace_s`` seconds to finish, and then ends."""
        await self._server.stop(grace_s)

    async def report(self, states: Mapping[str, bool]) -> None:
        """Sets which services health checks report as serving."""
        for service, serving in states.items():
            await self._health.set(service, _STATES[serving])


class _Pools:
    """A chain of protobuf descriptor pools, for gRPC's reflection: each method searches one after the other.

    Python's own pool is the last: it may have messages of other packages with the same names.
    """

    def __init__(self, pools: Iterable[DescriptorPool]) -> None:
        self._pools = [*pools, Default()]  # type: ignore[no-untyped-call]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def find(*arguments: Any) -> Any:
            for pool in self._pools[:-1]:
                with suppress(KeyError):
                    return getattr(pool, name)(*arguments)
            return getattr(self._pools[-1], name)(*arguments)

        return find
