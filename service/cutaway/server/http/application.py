"""The ASGI application of the HTTP server: every route, and the guard against pages of other sites."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib import resources
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from cutaway.client.trust import is_loopback
from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.results import ModelName
from cutaway.server.http.connect import PATH, ConnectApplication, refused
from cutaway.server.http.guarded import problem
from cutaway.server.http.rest import Rest
from cutaway.server.rpc.servicer import Servicer
from cutaway.server.settings import Settings

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


def description_routes() -> list[BaseRoute]:
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


def page_routes() -> list[BaseRoute]:
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
        """Answers a request."""
        failure = self._failure(scope)
        if failure is None:
            await self._application(scope, receive, send)
        else:
            await problem(failure)(scope, receive, send)

    def _failure(self, scope: Scope) -> CutawayError | None:
        headers = Headers(scope=scope)
        try:
            for key, value in scope["headers"]:
                key.decode("ascii"), value.decode()
            scope["query_string"].decode("ascii")
        except UnicodeDecodeError:
            return error(Reason.MALFORMED_REQUEST, "the headers of the request are no UTF-8")
        host, origin = headers.get("host", ""), headers.get("origin")
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


def application(
    servicer: Servicer, serving: Collection[ModelName], settings: Settings, further: Sequence[BaseRoute]
) -> ASGIApp:
    """Returns the application.

    Args:
        servicer: answers the calls.
        serving: the models that answer; changes with them.
        settings: limits, and the origins of pages that may call.
        further: routes of other protocols.
    """
    max_bytes = 2 * settings.max_message_bytes  # slightly larger requests get an error that names the limit
    connect = ConnectApplication(servicer, settings.receive_timeout_s, max_bytes)
    rest = Rest(servicer, serving, settings.receive_timeout_s, max_bytes)
    own = [Mount(PATH.rstrip("/"), connect), *rest.routes(), *description_routes(), *page_routes()]
    routes: list[BaseRoute] = [*own, *further]
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
    return Starlette(routes=routes, middleware=middleware, exception_handlers=rest.exception_handlers())
