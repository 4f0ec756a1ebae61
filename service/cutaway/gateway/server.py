"""The front door as a gRPC server: our service, health, reflection."""

from __future__ import annotations

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from cutaway.errors import Reason, error
from cutaway.gateway.backends import Backend
from cutaway.gateway.credentials import credentials
from cutaway.gateway.observers import Observers
from cutaway.gateway.reflecting import Reflecting
from cutaway.gateway.servicer import Servicer
from cutaway.gateway.tokens import doorkeeper
from cutaway.routes import SERVICE
from cutaway.settings import Settings

# Importing a service's module is what makes reflection know it.
from cutaway.v1 import inspection_service_pb2  # noqa: F401

_LARGEST = 2**31 - 1
"""The largest message that gRPC knows of."""

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def refuse_unusable(settings: Settings) -> None:
    """Read the files that ``settings`` name, before anything is started that takes its time.

    Raises:
        CutawayError: a certificate, a key or the tokens cannot be used, with the variable at fault.
    """
    credentials(settings)
    doorkeeper(settings.tokens)


class FrontDoor:
    """One listening front door over one backend.

    Args:
        backend: what answers; closed with the front door.
        settings: addresses and limits.

    Attributes:
        address: where it listens.
        observers: who watches its calls.
    """

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self._backend = backend
        self._settings = settings
        self._health = health.aio.HealthServicer()
        self._credentials = credentials(settings)
        self._doorkeeper = doorkeeper(settings.tokens)
        self.observers = Observers(backend.turns, settings)
        # A request a little over the limit is read, so that it can be told what the limit is.
        limit = min(2 * settings.max_message_bytes, _LARGEST)
        self._server = grpc.aio.server(
            interceptors=(Reflecting(self._doorkeeper),) if settings.tokens else (),  # one costs every call
            options=[
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),  # else a second server takes half of the first one's calls
            ],
        )
        self.address = ""

    async def start(self) -> None:
        """Listen; sets ``address``, with the port that was picked.

        Raises:
            CutawayError: the address cannot be had.
        """
        limit, deadline_s = self._settings.max_message_bytes, self._settings.default_deadline_s
        servicer = Servicer(self._backend, limit, deadline_s, self._doorkeeper, self.observers.watch)
        self._server.add_generic_rpc_handlers((servicer.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        try:
            port = self._bound()
        except RuntimeError as failure:
            raise error(Reason.BACKEND_UNAVAILABLE, f"cannot listen on {self._settings.address}: {failure}") from None
        host = self._settings.address.rpartition(":")[0]
        self.address = f"{host}:{port}"
        self.observers.open()
        await self._server.start()
        await self._set_health(_SERVING)

    def _bound(self) -> int:
        if self._credentials is None:
            return self._server.add_insecure_port(self._settings.address)
        return self._server.add_secure_port(self._settings.address, self._credentials)

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, let running ones finish for ``grace_s`` seconds, close the backend."""
        await self._set_health(_NOT_SERVING)
        await self._server.stop(grace_s)
        await self._backend.close(grace_s)
        await self.observers.close()

    async def set_serving(self, serving: bool) -> None:
        """Tell health checks whether calls can be answered."""
        await self._set_health(_SERVING if serving else _NOT_SERVING)

    async def _set_health(self, state: int) -> None:
        for service in ("", SERVICE):
            await self._health.set(service, state)
        for name in self._backend.catalog.all():
            for service in (name.model, f"{name.model}/versions/{name.version}"):
                await self._health.set(service, state)
            self.observers.metrics.serving(name, state == _SERVING)
