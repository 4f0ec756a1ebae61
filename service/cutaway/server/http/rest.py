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

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.results import ModelName
from cutaway.contract.wire import models as wire_models
from cutaway.server.http import json_messages
from cutaway.server.http.guarded import MEDIA_TYPE, RequestBody, guarded, unless_gone
from cutaway.server.http.rest_request import contract_request, media_type_in, read_rest_request
from cutaway.server.rpc.servicer import Servicer, listed_models
from cutaway.server.rpc.status import TranslatedCall
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
    """

    def __init__(self, servicer: Servicer, serving: Collection[ModelName]) -> None:
        self._servicer = servicer
        self._serving = serving
        self._known_types: dict[str, tuple[Mapping[str, str], float]] = {}

    def routes(self) -> list[BaseRoute]:
        """Returns the routes."""
        return [
            Route("/v1/models", guarded(self._servicer, "ListModels", self._models), methods=["GET"]),
            Route("/v1/models/{model:path}", guarded(self._servicer, "GetModel", self._model), methods=["GET"]),
            Route("/v1/models/{model:path}", guarded(self._servicer, "Inspect", self._verb), methods=["POST"]),
        ]

    async def _models(self, _: Request, call: TranslatedCall) -> Response:
        names = await listed_models(self._servicer, call)
        return JSONResponse({"models": list(dict.fromkeys(name.model for name in names))})

    async def _model(self, request: Request, call: TranslatedCall) -> Response:
        more = {name: name in request.query_params for name in ("operators", "example")}
        data = wire_models.encode_model_request(request.path_params["model"], **more)
        reply = await self._servicer.call("GetModel", data, call) or b""
        name = wire_models.decode_name(inspection_service_pb2.GetModelResponse.FromString(reply).model.model)
        detail = json.loads(await json_messages.as_text(inspection_service_pb2.GetModelResponse, reply))
        return JSONResponse({"name": name.model, "ready": name in self._serving, **detail})

    async def _data_types(self, model: str, call: TranslatedCall) -> Mapping[str, str]:
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

    async def _verb(self, request: Request, call: TranslatedCall) -> Response:
        """Answers ``MODEL:VERB``."""
        model, _, verb = request.path_params["model"].rpartition(":")
        if verb not in ("predict", "explain", "inspect", "program"):
            what = f"{verb!r:.40} is none of predict, explain, inspect and program: POST /v1/models/NAME:predict"
            raise error(Reason.NOT_IMPLEMENTED, what)
        body = RequestBody(request.receive, self._servicer.settings)
        if verb == "program":
            return await _program(request, model, body)
        data_types = partial(self._data_types, model, call)
        rest_request = await read_rest_request(verb, model, request.headers, body, data_types)
        reply = await unless_gone(request, self._servicer.call("Inspect", rest_request.request, call))
        # A thread converts large replies.
        content = await json_messages.converted(rest_request.write, reply or b"")
        return Response(content, media_type=rest_request.media_type)


async def _program(request: Request, model: str, body: RequestBody) -> Response:
    """Returns a request as a program, without a call of the model."""
    data = await contract_request(model, media_type_in(request.headers), body)
    address = request.query_params.get("address", str(request.base_url))
    has_token = "authorization" in request.headers
    language = request.query_params.get("language", "python")
    return PlainTextResponse(
        await asyncio.to_thread(lambda: program_of(question_of(data, address, has_token=has_token), language))
    )


async def no_route(_: Request, failure: Any) -> Response:
    """Returns the problem details for an unknown path or an unsupported HTTP method."""
    known = {"type": "about:blank", "title": failure.detail, "status": failure.status_code}
    return JSONResponse(known, failure.status_code, failure.headers, MEDIA_TYPE)
