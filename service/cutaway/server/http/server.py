"""The gateway's HTTP server: its connections, its routes, and the guard against pages of other sites."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import httptools
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cutaway.client.trust import is_loopback
from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.results import ModelName
from cutaway.server.auth.tls import ssl_context
from cutaway.server.http.connect import PATH, ConnectApplication, refused
from cutaway.server.http.guarded import no_route, problem
from cutaway.server.http.rest import Rest
from cutaway.server.listening import listener, name_of
from cutaway.server.rpc.servicer import Servicer

# tools/openapi.py writes the description, OpenAPI 3.1; Swagger UI is the page to try it.
_DESCRIPTION = resources.files("cutaway.server.http") / "openapi.json"

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Cutaway by HTTP</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
"""

_START = "SwaggerUIBundle({url: 'openapi.json', dom_id: '#swagger-ui', validatorUrl: null});"

_ASSETS = {"swagger-ui.css": "text/css", "swagger-ui-bundle.js": "text/javascript"}

_SWAGGER_POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'"


def _description_routes() -> list[BaseRoute]:
    """Returns the routes of the description and of the page to try it; both are public."""
    return [
        Route("/openapi.json", lambda _: Response(_DESCRIPTION.read_bytes(), media_type="application/json")),
        Route("/docs", lambda _: HTMLResponse(_PAGE, headers={"content-security-policy": _SWAGGER_POLICY})),
        Route("/docs/start.js", lambda _: Response(_START, media_type="text/javascript")),
        Route("/docs/{name}", _asset),
    ]


def _asset(request: Request) -> Response:
    """Returns a file of Swagger UI, which the page needs."""
    name = request.path_params["name"]
    if name not in _ASSETS:
        return Response(status_code=404)
    return Response(
        resources.files("swagger_ui").joinpath("static").joinpath(name).read_bytes(), media_type=_ASSETS[name]
    )


# The inspector, a page on which people look into a served model. ``make web`` builds it from web/.
STATIC = Path(str(resources.files("cutaway.server") / "web" / "static"))

_PAGE_POLICY = "; ".join(
    (
        "default-src 'self'",
        "img-src 'self' blob: data:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)

_HEADERS = {
    "content-security-policy": _PAGE_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}

_FOR_EVER = "public, max-age=31536000, immutable"


def _page_routes() -> list[BaseRoute]:
    """Returns the routes of the inspector's page, which is public: only its calls need a token."""
    return [
        Route("/", GZipMiddleware(_Files("index.html", "no-cache"))),
        # A name has a digest of the content in it: another content has another name.
        Mount("/assets", GZipMiddleware(_Files("assets", _FOR_EVER))),
    ]


class _Files(StaticFiles):
    """Static files of the inspector's page.

    Args:
        name: a file, or a folder, of the built page.
        caching: for how long browsers may keep them.
    """

    def __init__(self, name: str, caching: str) -> None:
        path = STATIC / name
        super().__init__(directory=path if path.is_dir() else path.parent)
        self._only = "" if path.is_dir() else name
        self._caching = caching

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Returns a file, or that the browser has it."""
        response = await super().get_response(self._only or path, scope)
        response.headers.update({**_HEADERS, "cache-control": self._caching})
        return response


_ONCE = ("host", "content-type", "content-encoding", "x-timeout-ms")

_LOCAL = ("localhost", "127.0.0.1", "[::1]")


class Guard:
    """A middleware that refuses requests of other sites' pages, and headers that no method could read.

    A browser sends requests of any page to this machine, with the page's origin. Without this guard, any open page
    could call a server that listens for this machine only.

    Args:
        application: answers all other requests.
        origins: of pages that may call; the server's own may, too.
        local: whether the server listens for this machine only: then it has no other name.
    """

    def __init__(self, app: ASGIApp, *, origins: Collection[str], local: bool) -> None:
        self._application = app
        self._origins = origins
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, with a header that keeps replies out of other sites' pages."""

        async def own(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"cross-origin-resource-policy", b"same-origin")]
            await send(message)

        failure = self._failure(scope)
        await (self._application if failure is None else problem(failure))(scope, receive, own)

    def _failure(self, scope: Scope) -> CutawayError | None:
        headers = Headers(scope=scope)
        try:
            for key, value in scope["headers"]:
                key.decode("ascii"), value.decode()
            scope["query_string"].decode("ascii")
        except UnicodeDecodeError:
            return error(Reason.MALFORMED_REQUEST, "the headers of the request are no UTF-8")
        host, origin = headers.get("host", ""), headers.get("origin")
        for name in _ONCE:
            if len(headers.getlist(name)) > 1:
                return error(Reason.MALFORMED_REQUEST, "is sent several times; a proxy may read another one", name)
        if self._local and _name(host) not in _LOCAL:
            return error(Reason.ORIGIN_REFUSED, f"this server is not known as {host!r:.80}; ask for 127.0.0.1", "host")
        own = (f"http://{host}", f"https://{host}")
        if origin is not None and origin not in own and not {origin, "*"} & {*self._origins}:
            what = f"pages of {origin:.80} may not call; the setting is CUTAWAY_HTTP_ORIGINS"
            return error(Reason.ORIGIN_REFUSED, what, "origin")
        return refused(headers.get("content-type", ""))


def _name(host: str) -> str:
    """Returns the name in a ``Host`` header, without the port."""
    return host if host.endswith("]") else host.rpartition(":")[0] or host


_CALLERS_HEADERS = [
    *("authorization", "content-type", "connect-protocol-version", "connect-timeout-ms", "x-request-id"),
    *("grpc-timeout", "x-grpc-web", "x-user-agent", "traceparent", "x-timeout-ms"),
    "inference-header-content-length",
]

_REPLY_HEADERS = [
    *("x-request-id", "grpc-status", "grpc-message", "grpc-status-details-bin", "retry-after"),
    "inference-header-content-length",
]


def _application(servicer: Servicer, serving: Collection[ModelName], further: Sequence[BaseRoute]) -> ASGIApp:
    """Returns the ASGI application; see `HttpServer`."""
    settings, connect = servicer.settings, ConnectApplication(servicer)
    own = [*Rest(servicer, serving).routes(), *_description_routes(), *_page_routes()]
    routes: list[BaseRoute] = [Mount(PATH.rstrip("/"), connect), *own, *further]
    origins = [origin.strip() for origin in settings.http_origins.split(",") if origin.strip()]
    middleware = [Middleware(Guard, origins=origins, local=is_loopback(settings.http_address))]
    if origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=_CALLERS_HEADERS,
            expose_headers=_REPLY_HEADERS,
            max_age=7200,
        )
        middleware.insert(0, cors)
    return Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: no_route})


MAX_HEAD_BYTES = 64 << 10
"""The largest head of a request: its line and its headers. Trailers may have as much."""

_LARGE_HEAD = f"the head of a request has at most {MAX_HEAD_BYTES} bytes"

MOST_PIPELINED = 16
"""The most requests of a connection that wait for the reply to the one before."""

_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class HttpConnection(HttpToolsProtocol):
    """A connection by HTTP/1.1, with limits that uvicorn does not have.

    The head of a request may take `receive_timeout_s` to arrive, and so may the rest of a body after its reply. A
    caller who reads nothing of a reply for `idle_timeout_s` loses the connection, with the rest of the reply. After a
    request, the next one must begin within `idle_timeout_s`, whatever else arrives. Trailers are dropped, and limited.
    A request that asks for another protocol, as Java's HTTP client does, is answered in this one.

    Attributes:
        most: the most connections of the server; more are refused.
        receive_timeout_s: seconds; a subclass sets it.
        idle_timeout_s: seconds; a subclass sets it.
    """

    most: int
    receive_timeout_s: float
    idle_timeout_s: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Waits for the first request."""
        super().connection_made(transport)
        # asyncio does it only for sockets that name their protocol; else a reply waits 40 ms for an acknowledgement.
        if (own := transport.get_extra_info("socket")).family != socket.AF_UNIX:
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head_bytes = 0
        self._framing_bytes = 0
        self._is_receiving = False
        self._is_told_again = False
        self._overdue: asyncio.TimerHandle | None = self._abort_later()
        self._unread: asyncio.TimerHandle | None = None
        self._between: asyncio.TimerHandle | None = None
        if len(self.connections) > self.most:
            transport.write(_TOO_MANY)
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Reads a part of a request."""
        if self._overdue is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES + len(data):
                self.send_400_response(_LARGE_HEAD)
                return
        elif self._is_receiving:
            self._framing_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError as failure:
            own = failure.__context__ if type(failure.__context__) is ValueError else None
            self.send_400_response(str(own or "Invalid HTTP request received."))
            return
        if self._framing_bytes > MAX_HEAD_BYTES and self._is_receiving and self._overdue is None:
            self.transport.abort()

    def _feed(self, data: bytes) -> None:
        """Parses received bytes; requests to upgrade to another protocol are parsed as ordinary requests.

        httptools stops after the head of such a request. A new parser then reads the body; an artificial head with the
        same framing headers tells this parser the length.
        """
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            framing = [header for header in self.headers if header[0] in (b"content-length", b"transfer-encoding")]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._is_told_again = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n" % b"".join(b"%s: %s\r\n" % each for each in framing))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keeps a header of the head. What comes after the body is no header (RFC 9110, 6.5.1)."""
        if self._overdue is not None:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Takes a part of the body; a chunk of one byte may have a long line for its size."""
        self._framing_bytes = max(0, self._framing_bytes - 16 * len(body))
        super().on_body(body)

    def on_message_begin(self) -> None:
        """Starts the time limit for the head of a request.

        Raises:
            ValueError: too many requests wait for their turn.
        """
        if self._is_told_again:
            return
        if len(self.pipeline) >= MOST_PIPELINED:
            raise ValueError(f"at most {MOST_PIPELINED} requests wait for the reply to another")
        super().on_message_begin()
        self._framing_bytes = 0
        self._is_receiving = True
        self._limit_pause(None)
        if self._overdue is None:
            self._head_bytes = 0
            self._overdue = self._abort_later()

    def on_headers_complete(self) -> None:
        """Ends the time limit for the head, which is complete; raises ValueError if it is too large."""
        if self._is_told_again:
            self._is_told_again = False
            return
        lines = [(self.parser.get_method(), self.url), *self.headers]
        if len("HTTP/1.1\r\n") + sum(len(one) + len(other) + len(": \r\n") for one, other in lines) > MAX_HEAD_BYTES:
            raise ValueError(_LARGE_HEAD)
        self._stop_head_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Ends the time limit for a body that arrived after its reply."""
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._is_receiving = False
        if self._between is not None:
            self._limit_pause(self.idle_timeout_s)

    def on_response_complete(self) -> None:
        """Starts the time limit for the rest of the request, or for the next one."""
        is_last = not self.pipeline and self._overdue is None
        super().on_response_complete()
        if is_last:
            self._limit_pause(self.receive_timeout_s if self._is_receiving else self.idle_timeout_s)

    def pause_writing(self) -> None:
        """Begins to watch a caller who reads more slowly than the server sends."""
        super().pause_writing()
        self._watch_reader(left=self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Ends the watch: the caller has read most of the reply."""
        super().resume_writing()
        if self._unread is not None and not self.transport.is_closing():
            self._unread.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends all timers: the connection has ended."""
        self._stop_head_timer()
        self._limit_pause(None)
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def _watch_reader(self, left: int) -> None:
        """Aborts the connection if the caller reads none of the ``left`` bytes for `idle_timeout_s`, now or later."""

        def look() -> None:
            now = self.transport.get_write_buffer_size()
            if now >= left:
                self.transport.abort()
            else:
                self._watch_reader(now)

        if self._unread is not None:
            self._unread.cancel()
        self._unread = self.loop.call_later(self.idle_timeout_s, look)

    def _limit_pause(self, seconds: float | None) -> None:
        """Restarts the timer that ends a connection after a reply, or stops it. uvicorn's timer stops at any byte."""
        if self._between is not None:
            self._between.cancel()
        self._between = None if seconds is None else self.loop.call_later(seconds, self._leave)

    def _leave(self) -> None:
        """Closes the connection when the pause timer ends; the caller may still read the rest of the last reply."""
        self.transport.close()
        if left := self.transport.get_write_buffer_size():
            self._watch_reader(left)

    def _abort_later(self) -> asyncio.TimerHandle:
        return self.loop.call_later(self.receive_timeout_s, self.transport.abort)

    def _stop_head_timer(self) -> None:
        """Stops the timer for the head of a request."""
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None


_FIELD = "CUTAWAY_HTTP_ADDRESS"


class HttpServer(uvicorn.Server):
    """An HTTP/1.1 server in the running event loop, which leaves signals to the gateway.

    Args:
        servicer: answers the calls.
        serving: the models that answer; changes with them.
        further: routes of other protocols.

    Attributes:
        address: the ``host:port`` that the server listens on.
    """

    def __init__(self, servicer: Servicer, serving: Collection[ModelName], further: Sequence[BaseRoute]) -> None:
        settings, tls = servicer.settings, ssl_context(servicer.settings)
        self._handshake_s = None if tls is None else settings.receive_timeout_s
        limits = {
            "most": settings.http_connections,
            "receive_timeout_s": settings.receive_timeout_s,
            "idle_timeout_s": settings.idle_timeout_s,
        }
        self._connection: Any = type("LimitedConnection", (HttpConnection,), limits)
        config = uvicorn.Config(
            _application(servicer, serving, further),
            http=self._connection,
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            log_level="error",  # of connections that speak no HTTP, others are not told
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=round(settings.idle_timeout_s),
            ssl_context_factory=None if tls is None else lambda *_: tls,
        )
        super().__init__(config)
        self.address = settings.http_address
        self._begun = asyncio.Event()
        self._cleanup = ExitStack()
        self._running: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Starts to listen, and sets `address`.

        Raises:
            CutawayError: the address is not available.
        """
        bound = self._cleanup.enter_context(listener(self.address, _FIELD))
        self.address = name_of(self.address, bound.getsockname()[1])
        self._running = asyncio.ensure_future(self.serve([bound]))
        await self._begun.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to listen. uvicorn's own start has no time limit for the handshake of TLS."""
        connection = partial(self._connection, config=self.config, server_state=self.server_state, app_state={})
        self.servers = [
            await asyncio.get_running_loop().create_server(
                connection,
                sock=listener,
                ssl=self.config.ssl,
                backlog=self.config.backlog,
                ssl_handshake_timeout=self._handshake_s,
            )
            for listener in sockets or ()
        ]
        self.started = True
        self._begun.set()

    async def stop(self, grace_s: float) -> None:
        """Accepts no more calls, gives running calls ``grace_s`` seconds to finish, and then ends."""
        if self._running is not None:
            self.config.timeout_graceful_shutdown = max(1, round(grace_s))
            self.should_exit = True
            await asyncio.wait([self._running])
        self._cleanup.close()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Does nothing."""
        yield
