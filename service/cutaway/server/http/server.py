"""The gateway's HTTP server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import uvicorn
from starlette.routing import BaseRoute
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cutaway.contract.errors import Reason, error
from cutaway.contract.results import ModelName
from cutaway.server.auth.tls import ssl_context
from cutaway.server.http.application import application
from cutaway.server.rpc.servicer import Servicer
from cutaway.server.settings import Settings

MAX_HEAD_BYTES = 64 << 10
"""The largest head of a request: its line and its headers."""


class HttpConnection(HttpToolsProtocol):
    """A connection by HTTP/1.1, with limits that uvicorn does not have.

    The head of a request may take `receive_timeout_s` to arrive. A caller who reads nothing of a reply for
    `idle_timeout_s` loses the connection, with the rest of the reply.

    Attributes:
        receive_timeout_s: seconds; a subclass sets it.
        idle_timeout_s: seconds; a subclass sets it.
    """

    receive_timeout_s: float
    idle_timeout_s: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Waits for the first request."""
        super().connection_made(transport)
        # asyncio does it only for sockets that name their protocol; else a reply waits 40 ms for an acknowledgement.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head_bytes = 0
        self._overdue: asyncio.TimerHandle | None = self._abort_later()
        self._unread: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        """Reads a part of a request."""
        if self._overdue is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES + len(data):
                self.send_400_response(f"the head of a request has at most {MAX_HEAD_BYTES} bytes")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Starts the time limit for the head of a request."""
        super().on_message_begin()
        if self._overdue is None:
            self._head_bytes = 0
            self._overdue = self._abort_later()

    def on_headers_complete(self) -> None:
        """Ends the time limit for the head, which is complete."""
        self._forget()
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """Begins to watch a caller who reads more slowly than the server sends."""
        super().pause_writing()
        self._watch_reader(left=self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Ends the watch: the caller has read most of the reply."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends all timers: the connection has ended."""
        self._forget()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def _watch_reader(self, left: int) -> None:
        """Ends the connection if there are still ``left`` bytes to read when the time is over."""

        def look() -> None:
            now = self.transport.get_write_buffer_size()
            if now >= left:
                self.transport.abort()
            else:
                self._watch_reader(now)

        self._unread = self.loop.call_later(self.idle_timeout_s, look)

    def _abort_later(self) -> asyncio.TimerHandle:
        return self.loop.call_later(self.receive_timeout_s, self.transport.abort)

    def _forget(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None


_FIELD = "CUTAWAY_HTTP_ADDRESS"


class HttpServer:
    """An HTTP/1.1 server in the running event loop.

    Args:
        servicer: answers the calls.
        serving: the models that answer; changes with them.
        settings: address, TLS, limits, and the origins of pages that may call.
        routes: the routes of further protocols.

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
            http=type("LimitedConnection", (HttpConnection,), limits),
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
    """A uvicorn server that leaves signals to the gateway.

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
