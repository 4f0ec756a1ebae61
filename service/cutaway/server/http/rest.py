"""The routes of REST, as KServe's first protocol has them: ``/v1/models``, ``:predict`` and ``:explain``.

``:inspect`` takes and returns the contract in JSON. ``:program`` returns a request as a program.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.results import ModelName
from cutaway.contract.wire import models as wire_models
from cutaway.server.http import json_messages
from cutaway.server.http.guarded import MEDIA_TYPE, guarded, unless_gone
from cutaway.server.http.http_call import HttpCall, RequestBody
from cutaway.server.http.rest_request import RestRequest, contract_request, media_type_in, read_rest_request
from cutaway.server.rpc.servicer import Servicer, listed_models
from cutaway.v1 import inspection_service_pb2
from cutaway.views.programs import program_of, question_of

_KNOWN_S = 10.0
"""Seconds for which the types of a model's inputs are remembered; its archive may be replaced."""

_MOST_MODELS = 10_000


class Rest:
    """The routes of REST.

    Args:
        servicer: answers the calls.
        serving: the models that answer; changes with them.
        timeout_s: how long a request may take to arrive.
        max_bytes: the largest request.
    """

    def __init__(self, servicer: Servicer, serving: Collection[ModelName], timeout_s: float, max_bytes: int) -> None:
        self._servicer = servicer
        self._serving = serving
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._known_types: dict[str, tuple[Mapping[str, str], float]] = {}

    def routes(self) -> list[BaseRoute]:
        """Returns the routes."""
        return [
            Route("/v1/models", guarded(self._servicer, "ListModels", self._models), methods=["GET"]),
            Route("/v1/models/{model:path}", guarded(self._servicer, "GetModel", self._model), methods=["GET"]),
            Route("/v1/models/{model:path}", guarded(self._servicer, "Inspect", self._verb), methods=["POST"]),
        ]

    def exception_handlers(self) -> Mapping[Any, Any]:
        """Returns the handlers of requests that no route answers."""
        return {HTTPException: _plain_problem}

    async def _models(self, _: Request, call: HttpCall) -> Response:
        names = await listed_models(self._servicer, call)
        return JSONResponse({"models": list(dict.fromkeys(name.model for name in names))})

    async def _model(self, request: Request, call: HttpCall) -> Response:
        more = {name: name in request.query_params for name in ("operators", "example")}
        data = wire_models.encode_model_request(request.path_params["model"], **more)
        reply = await self._servicer.call("GetModel", data, call) or b""
        name = wire_models.decode_name(inspection_service_pb2.GetModelResponse.FromString(reply).model.model)
        detail = json.loads(await json_messages.as_text(inspection_service_pb2.GetModelResponse, reply))
        return JSONResponse({"name": name.model, "ready": name in self._serving, **detail})

    async def _data_types(self, model: str, call: HttpCall) -> Mapping[str, str]:
        """Returns the data types of the model's inputs, by name, without inputs of unknown types."""
        known, since = self._known_types.get(model, ({}, -math.inf))
        if time.monotonic() - since > _KNOWN_S:
            if len(self._known_types) >= _MOST_MODELS:
                self._known_types.clear()
            try:
                detail = await self._servicer.describe(model, call)
            except CutawayError:
                return {}  # the request itself fails for the same reason, or can do without
            known = {spec.name: spec.data_type for spec in wire_models.decode(detail).inputs if spec.data_type}
            self._known_types[model] = known, time.monotonic()
        return known

    async def _verb(self, request: Request, call: HttpCall) -> Response:
        """Answers ``MODEL:VERB``."""
        model, _, verb = request.path_params["model"].rpartition(":")
        try:
            if verb not in ("predict", "explain", "inspect", "program"):
                what = f"{verb!r:.40} is none of predict, explain, inspect and program: POST /v1/models/NAME:predict"
                raise error(Reason.NOT_IMPLEMENTED, what)
            body = RequestBody(request.receive, self._timeout_s, self._max_bytes)
            if verb == "program":
                return await _program(request, model, body)
            rest_request = await read_rest_request(
                verb, model, request.headers, body, self._max_bytes, partial(self._data_types, model, call)
            )
        except CutawayError as failure:
            await self._servicer.refuse("Inspect", failure, call)
            raise
        reply = await unless_gone(request, self._servicer.call("Inspect", rest_request.request, call))
        return await _response(rest_request, reply or b"")


async def _program(request: Request, model: str, body: RequestBody) -> Response:
    """Returns a request as a program, without a call of the model."""
    data = await contract_request(model, media_type_in(request.headers), body)
    address = request.query_params.get("address", str(request.base_url))
    has_token = "authorization" in request.headers
    language = request.query_params.get("language", "python")
    write = partial(_written, address=address, has_token=has_token, language=language)
    return PlainTextResponse(await asyncio.to_thread(write, data))


def _written(data: bytes, *, address: str, has_token: bool, language: str) -> str:
    return program_of(question_of(data, address, has_token=has_token), language)


async def _response(request: RestRequest, reply: bytes) -> Response:
    """Returns the reply in the requested form; a thread converts large replies."""
    return Response(await json_messages.converted(request.write, reply), media_type=request.media_type)


async def _plain_problem(_: Request, failure: HTTPException) -> Response:
    """Returns the problem details for an unknown path or an unsupported HTTP method."""
    known = {"type": "about:blank", "title": failure.detail, "status": failure.status_code}
    return JSONResponse(known, failure.status_code, failure.headers, MEDIA_TYPE)
