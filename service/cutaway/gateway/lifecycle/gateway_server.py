"""The gateway's servers, by gRPC and by HTTP, over one service."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from cutaway.client.transport import SERVICE
from cutaway.config.settings import Settings
from cutaway.gateway.auth.tls import check_http_exposure, server_credentials
from cutaway.gateway.auth.token_file import authenticator
from cutaway.gateway.backends.backend import Backend
from cutaway.gateway.observability.observers import Observers
from cutaway.gateway.open_inference.grpc_service import grpc_service
from cutaway.gateway.open_inference.methods import OpenInference
from cutaway.gateway.rpc.server import GrpcServer, Service
from cutaway.gateway.rpc.servicer import Servicer
from cutaway.results import ModelName


def check_files(settings: Settings) -> None:
    """Reads the files in ``settings``; called before anything slow is started.

    Raises:
        CutawayError: a certificate, a key or the token file cannot be used; has the environment variable.
    """
    server_credentials(settings)
    authenticator(settings.tokens)
    check_http_exposure(settings)


class GatewayServer:
    """Serves one backend.

    Args:
        backend: runs the models.
        settings: addresses and limits.

    Attributes:
        observers: metrics, log and traces.
    """

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self._backend = backend
        self._reported: set[ModelName] = set()
        self._serving: set[ModelName] = set()
        known = authenticator(settings.tokens)
        self.observers = Observers(backend.batchers, settings)
        servicer = Servicer(backend, settings, known, self.observers.watch)
        open_inference = OpenInference(servicer, self._serving)
        own = Service(SERVICE, [servicer.handler()])
        self._grpc = GrpcServer([own, grpc_service(open_inference, settings)], known, settings)
        self._http = None
        if settings.http_address:
            # Imported here because most gateways do not serve it.
            from cutaway.gateway.http.server import HttpServer
            from cutaway.gateway.open_inference.rest import routes

            self._http = HttpServer(servicer, self._serving, settings, routes(open_inference, settings))

    @property
    def address(self) -> str:
        """The ``host:port`` of gRPC."""
        return self._grpc.address

    @property
    def http_address(self) -> str:
        """The ``host:port`` of HTTP; empty while it is not served."""
        return self._http.address if self._http else ""

    async def start(self) -> None:
        """Starts to listen.

        Raises:
            CutawayError: an address is not available.
        """
        await self._grpc.start()
        self.observers.open()
        if self._http:
            await self._http.start()
        await self.set_serving(self._backend.catalog.all())

    async def stop(self, grace_s: float) -> None:
        """Accepts no more calls, gives running calls ``grace_s`` seconds to finish, and then ends."""
        await self.set_serving(())
        stopping = [self._grpc.stop(grace_s), *([self._http.stop(grace_s)] if self._http else [])]
        await asyncio.gather(*stopping)
        await self.observers.close()

    async def set_serving(self, models: Collection[ModelName]) -> None:
        """Sets which models health checks and metrics report as serving. The gateway serves if any of them does; a
        name without a version stands for the highest version, as in calls."""
        self._serving.clear()
        self._serving.update(models)
        self._reported |= {*self._backend.catalog.all()}
        states = dict.fromkeys(["", SERVICE], bool(models))
        states |= {f"{name.model}/versions/{name.version}": name in models for name in self._reported}
        states |= dict.fromkeys((name.model for name in self._reported), False)
        states |= {name.model: name in models for name in self._backend.catalog.all()}
        await self._grpc.report(states)
        for name in self._reported:
            self.observers.metrics.set_serving(name, name in models)
