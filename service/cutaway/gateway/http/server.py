"""The gateway's HTTP server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import uvicorn
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from cutaway.config.settings import Settings
from cutaway.errors import Reason, error
from cutaway.gateway.auth.tls import ssl_context
from cutaway.gateway.http.application import application
from cutaway.gateway.http.connection import Connection
from cutaway.gateway.rpc.servicer import Servicer
from cutaway.results import ModelName

_FIELD = "CUTAWAY_HTTP_ADDRESS"


class HttpServer:
    """Serves HTTP/1.1 in the running event loop.

    Args:
        servicer: answers the calls.
        serving: the models that answer; changes with them.
        settings: address, TLS, limits, and the origins of pages that may call.
        routes: of further protocols.

    Attributes:
        address: the ``host:port`` that the server listens on.
    """

    def __init__(
        self, servicer: Servicer, serving: Collection[ModelName], settings: Settings, routes: Sequence[BaseRoute]
    ) -> None:
        self._settings = settings
        self._tls = ssl_context(settings)
        self._application = application(servicer, serving, settings, routes)
        self._server: _Server | None = None
        self._running: asyncio.Future[None] | None = None
        self.address = ""

    async def start(self) -> None:
        """Starts to listen, and sets `address`.

        Raises:
            CutawayError: the address is not available.
        """
        listener = _listening(self._settings.http_address)
        self.address = f"{self._settings.http_address.rpartition(':')[0]}:{listener.getsockname()[1]}"
        self._server = _Server(self._config(self._application))
        self._running = asyncio.ensure_future(self._server.serve([listener]))
        await self._server.begun.wait()

    async def stop(self, grace_s: float) -> None:
        """Accepts no more calls, gives running calls ``grace_s`` seconds to finish, and then ends."""
        if self._server is not None and self._running is not None:
            self._server.config.timeout_graceful_shutdown = max(1, round(grace_s))
            self._server.should_exit = True
            await asyncio.wait([self._running])

    def _config(self, application: ASGIApp) -> uvicorn.Config:
        settings = self._settings
        limits = {"receive_timeout_s": settings.receive_timeout_s, "idle_timeout_s": settings.idle_timeout_s}
        return uvicorn.Config(
            application,
            http=type("LimitedConnection", (Connection,), limits),
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            log_level="error",  # of connections that speak no HTTP, others are not told
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=round(settings.idle_timeout_s),
            ssl_context_factory=None if self._tls is None else lambda *_: self._tls,  # type: ignore[arg-type]
        )


class _Server(uvicorn.Server):
    """Leaves signals to the gateway.

    Attributes:
        begun: set when it listens.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.begun = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.begun.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listening(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    if not (port.isdecimal() and int(port) < 1 << 16):
        raise error(Reason.INVALID_VALUE, f"{address!r} is no HOST:PORT", _FIELD)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), int(port)), family=family)
    except OSError as failure:
        raise error(Reason.BACKEND_UNAVAILABLE, f"cannot listen on {address}: {failure}", _FIELD) from None
