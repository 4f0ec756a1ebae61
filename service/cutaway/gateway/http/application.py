"""All that the HTTP server answers, as one ASGI application."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Mount
from starlette.types import ASGIApp

from cutaway.config.settings import Settings
from cutaway.gateway.http import openapi, page
from cutaway.gateway.http.connect import PATH, ConnectApplication
from cutaway.gateway.http.guard import Guard
from cutaway.gateway.http.rest import Rest
from cutaway.gateway.rpc.servicer import Servicer
from cutaway.results import ModelName
from cutaway.trust import is_loopback

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
    own = [Mount(PATH.rstrip("/"), connect), *rest.routes(), *openapi.routes(), *page.routes()]
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
