"""The protocol by HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from google.protobuf import json_format
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from cutaway.config.settings import Settings
from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.http.guarded import guarded, unless_gone
from cutaway.gateway.http.http_call import HttpCall
from cutaway.gateway.http.problem import plain_problem
from cutaway.gateway.http.request_body import RequestBody
from cutaway.gateway.open_inference import json_form
from cutaway.gateway.open_inference.methods import Form, OpenInference

HEAD_BYTES = "inference-header-content-length"
"""The header with the size of the JSON, if bytes follow it."""

_ENCODING = "content-encoding"

_MODEL = "/v2/models/{model}"


def routes(methods: OpenInference, settings: Settings) -> list[BaseRoute]:
    """Returns the protocol's routes. Whether the server lives and is ready is told to everybody."""

    def route(path: str, name: str, handler: Callable[[Request, HttpCall], Awaitable[Response]], verb: str) -> Route:
        return Route(path, guarded(methods.servicer, name, handler, plain_problem), methods=[verb])

    infer = partial(_infer, methods, settings)
    found = [
        Route("/v2/health/live", _live, methods=["GET"]),
        Route("/v2/health/ready", partial(_ready, methods), methods=["GET"]),
        route("/v2", "GetModel", partial(_server, methods), "GET"),
    ]
    for path in (f"{_MODEL}/versions/{{version}}", _MODEL):
        found += [
            route(f"{path}/infer", "Inspect", infer, "POST"),
            route(f"{path}/ready", "GetModel", partial(_model_ready, methods), "GET"),
            route(path, "GetModel", partial(_model, methods), "GET"),
        ]
    found += [route("/v2/{path:path}", "GetModel", partial(_unserved, methods), verb) for verb in ("GET", "POST")]
    return [*found]


async def _live(_: Request) -> Response:
    return JSONResponse({"live": True})


async def _ready(methods: OpenInference, _: Request) -> Response:
    return _readiness({}, methods.server_ready())


async def _server(methods: OpenInference, _: Request, __: HttpCall) -> Response:
    return _json(methods.server_metadata())


async def _model_ready(methods: OpenInference, request: Request, call: HttpCall) -> Response:
    model, version = _named(request)
    return _readiness({"name": model}, await methods.model_ready(model, version, call))


async def _model(methods: OpenInference, request: Request, call: HttpCall) -> Response:
    return _json(await methods.model_metadata(*_named(request), call))


async def _unserved(methods: OpenInference, request: Request, call: HttpCall) -> Response:
    """Refuses what the protocol's extensions have."""
    what = "shared memory is not served: send the bytes" if "sharedmemory" in request.url.path else "is not served"
    failure = error(Reason.NOT_IMPLEMENTED, f"{request.method} {request.url.path:.100}: {what}")
    await methods.servicer.refuse("GetModel", failure, call)
    raise failure


async def _infer(methods: OpenInference, settings: Settings, request: Request, call: HttpCall) -> Response:
    body = RequestBody(request.receive, settings.receive_timeout_s, 2 * settings.max_message_bytes)
    try:
        form = Form(partial(json_form.read, *_named(request), _head_bytes(request)), json_form.write)
        data = await body.read()
    except CutawayError as failure:
        await methods.servicer.refuse("Inspect", failure, call)
        raise
    reply, head_bytes = await unless_gone(request, methods.infer(data, form, call))
    if head_bytes is None:
        return Response(reply, media_type="application/json")
    return Response(reply, headers={HEAD_BYTES: str(head_bytes)}, media_type="application/octet-stream")


def _head_bytes(request: Request) -> int | None:
    encoding = request.headers.get(_ENCODING, "identity")
    if encoding != "identity":
        raise error(Reason.NOT_IMPLEMENTED, f"{encoding!r:.40} is not served: send the request as it is", _ENCODING)
    text = request.headers.get(HEAD_BYTES)
    if text is not None and not (text.isascii() and text.isdecimal() and len(text) <= 12):
        raise error(Reason.INVALID_VALUE, "is a number of bytes", HEAD_BYTES)
    return None if text is None else int(text)


def _named(request: Request) -> tuple[str, str]:
    """Returns the model and the version in the path."""
    return request.path_params["model"], request.path_params.get("version", "")


def _readiness(known: dict[str, Any], ready: bool) -> Response:
    return JSONResponse({**known, "ready": ready}, HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE)


def _json(message: Any) -> Response:
    """Returns metadata; sizes of axes are numbers, which protobuf's JSON has as texts."""
    found = json_format.MessageToDict(message, preserving_proto_field_name=True)
    for tensor in (*found.get("inputs", ()), *found.get("outputs", ())):
        tensor["shape"] = [int(size) for size in tensor.get("shape", ())]
    return JSONResponse(found)
