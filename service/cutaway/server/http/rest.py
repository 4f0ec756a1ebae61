"""REST, as KServe's first protocol has it: ``/v1/models``, ``:predict`` and ``:explain``.

``:inspect`` takes and returns the contract in JSON. ``:program`` returns a request as a program. All requests become
requests of the contract. Instances are inputs of a model: KServe's `instances`, forms, and numpy's files.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import json
import math
import time
import zipfile
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from cutaway.client.request_builder import request_inputs
from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.npy import read_npy
from cutaway.contract.request_reader.reader import read_request
from cutaway.contract.requests import InspectRequest, Raw
from cutaway.contract.results import ModelName
from cutaway.contract.tensors import DTYPES, Array
from cutaway.contract.wire import models as wire_models
from cutaway.contract.wire import requests as wire_requests
from cutaway.contract.wire import results as wire_results
from cutaway.contract.wire.message_walk import parse
from cutaway.server.http import json_messages
from cutaway.server.http.guarded import MEDIA_TYPE, RequestBody, guarded, unless_gone
from cutaway.server.rpc.servicer import Servicer, listed_models
from cutaway.server.rpc.status import TranslatedCall
from cutaway.v1 import inspection_pb2, inspection_service_pb2, worker_pb2
from cutaway.views.programs import program_of, question_of

NPY, NPZ = "application/x-npy", "application/x-npz"

_FIELD = "instances"
_RIGHT = (
    "instances are lists of numbers, texts, {b64: ..., media_type: ...}, or mappings of input names to lists of numbers"
)


def _inputs_of(instances: Any) -> dict[str, Any]:
    """Returns the inputs for a list of instances, one row each, as arguments of an `InspectRequest`.

    Raises:
        InvalidArgument: with the field at fault.
    """
    if not isinstance(instances, list) or not instances:
        raise error(Reason.INVALID_VALUE, f"send a list of at least one instance; {_RIGHT}", _FIELD)
    if all(isinstance(instance, Mapping) and "b64" in instance for instance in instances):
        return {"raw": tuple(_raw(number, instance) for number, instance in enumerate(instances))}
    if all(isinstance(instance, Mapping) for instance in instances):
        return _by_name(instances)
    with at(_FIELD):
        return request_inputs(instances)


def _raw(number: int, instance: Mapping[str, Any]) -> Raw:
    with at(f"{_FIELD}[{number}].b64"):
        media_type, text = instance.get("media_type", ""), instance["b64"]
        if not (isinstance(text, str) and isinstance(media_type, str)):
            raise error(Reason.INVALID_VALUE, "b64 and media_type are texts")
        try:
            return Raw(base64.b64decode(text, validate=True), media_type)
        except (binascii.Error, ValueError) as failure:
            raise error(Reason.INVALID_VALUE, f"is no base64: {failure}") from None


def _by_name(instances: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = list(instances[0])
    for number, instance in enumerate(instances):
        if set(instance) != set(names):
            what = f"has the inputs {', '.join(instance)}, and the first instance has {', '.join(names)}"
            raise error(Reason.INVALID_VALUE, what[:300], f"{_FIELD}[{number}]")
    with at(_FIELD):
        return request_inputs({name: [instance[name] for instance in instances] for name in names})


def _of_types(tensors: Mapping[str, Array], data_types: Mapping[str, str]) -> dict[str, Array]:
    """Returns ``tensors`` with the types that the model takes: JSON has no types, and JavaScript writes 1.0 as 1.

    An array that another type cannot hold stays as it is, and the model refuses it.
    """
    only = next(iter(data_types.values())) if len(data_types) == 1 else ""
    return {name: _of_type(array, data_types.get(name, "" if name else only)) for name, array in tensors.items()}


def _of_type(array: Array, data_type: str) -> Array:
    if data_type not in DTYPES or array.dtype.kind not in "if" or DTYPES[data_type].kind == "b":
        return array
    with np.errstate(all="ignore"):
        cast = array.astype(DTYPES[data_type])
    whole = DTYPES[data_type].kind in "iu"
    return cast if not whole or np.array_equal(cast.astype(array.dtype), array) else array


def _arrays_in(data: bytes, media_type: str, max_bytes: int) -> dict[str, Array]:
    """Returns the arrays in a file of numpy, by name; the array of an NPY file has the name "".

    Raises:
        InvalidArgument: ``MALFORMED_REQUEST``; ``INPUT_DTYPE`` for Python objects.
        ResourceExhausted: ``REQUEST_TOO_LARGE`` if they are larger than ``max_bytes`` together.
    """
    try:
        if media_type == NPY:
            return {"": _array(io.BytesIO(data))}
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(member.file_size for member in archive.infolist()) > max_bytes:
                raise error(Reason.REQUEST_TOO_LARGE, f"the arrays have more than {max_bytes} bytes")
            return {name.removesuffix(".npy"): _array(io.BytesIO(archive.read(name))) for name in archive.namelist()}
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as failure:
        # zipfile raises the last two for members that are compressed in other ways, or encrypted.
        raise error(Reason.MALFORMED_REQUEST, f"the request is no {media_type}: {failure}"[:300]) from None


def _array(file: io.BytesIO) -> Array:
    return read_npy(file)


# Forms are what a page or ``curl -F`` sends: files for the model to decode, and fields of the request.
_MAX_FILES = 1000
_RIGHT_FORM = "name each file `instances`, or an NPY file after its input"


async def _form_of(headers: Mapping[str, str], body: RequestBody) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the fields and the inputs in a form.

    Its files called ``instances`` are examples for the model to decode, of the media type that they have. NPY files
    with another name are tensors of that name. Its field ``request`` has the other fields of a request, in JSON; a
    field with another name is one of them.

    Raises:
        CutawayError: the form cannot be read.
    """
    try:
        parser = MultiPartParser(
            Headers(dict(headers)), body.parts(), max_files=_MAX_FILES, max_fields=100, max_part_size=body.max_bytes
        )
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as failure:
        raise error(Reason.MALFORMED_REQUEST, f"the form cannot be read: {failure}"[:300]) from None
    try:
        return await _read(form.multi_items(), body.max_bytes)
    finally:
        await form.close()


async def _read(items: list[tuple[str, Any]], max_bytes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    fields: dict[str, Any] = {}
    examples: list[Raw] = []
    tensors: dict[str, Any] = {}
    for name, value in items:
        if not isinstance(value, UploadFile):
            fields |= _fields(name, value)
        elif name == "instances":
            examples.append(Raw(await value.read(), value.content_type or ""))
        else:
            tensors |= {name: _arrays_in(await value.read(), NPY, max_bytes)[""]}
    if examples and tensors:
        raise error(Reason.INVALID_VALUE, f"the form has examples and tensors; {_RIGHT_FORM}", "instances")
    if not (examples or tensors):
        raise error(Reason.INPUT_EMPTY, f"the form has no file; {_RIGHT_FORM}", "instances")
    return fields, {"raw": tuple(examples)} if examples else {"tensors": tensors}


def _fields(name: str, text: str) -> dict[str, Any]:
    """Returns the fields of a request in one field of the form; a text that is no JSON is the value itself."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if name != "request":
        return {name: value}
    if not isinstance(value, dict):
        raise error(Reason.MALFORMED_REQUEST, "is no JSON object", "request")
    return value


_DataTypes: TypeAlias = Callable[[], Awaitable[Mapping[str, str]]]

JSON, FORM, BINARY = "application/json", "multipart/form-data", "application/proto"

_DEFAULT_METHOD = "integrated_gradients"


class _RestRequest(NamedTuple):
    """A request by REST, and the form of its reply.

    Attributes:
        request: a serialised InspectRequest.
        write: returns the reply for a serialised InspectResponse.
        media_type: of the reply.
    """

    request: bytes
    write: Callable[[bytes], bytes]
    media_type: str


async def _read_rest_request(
    verb: str, model: str, headers: Mapping[str, str], body: RequestBody, data_types: _DataTypes
) -> _RestRequest:
    """Reads a request by REST.

    Args:
        verb: ``predict``, ``explain`` or ``inspect``.
        model: its name, from the path.
        headers: they name the forms of the request and of its reply.
        body: the request.
        data_types: returns the data types of the model's inputs, by name.

    Raises:
        CutawayError: the request cannot be read.
    """
    media_type = _media_type_in(headers)
    accepted = headers.get("accept", "*/*")
    if verb == "inspect":
        data = await _contract_request(model, media_type, body)
        binary = BINARY in accepted or (media_type == BINARY and JSON not in accepted)
        as_json = partial(json_messages.text_of, inspection_pb2.InspectResponse)
        return _RestRequest(data, bytes if binary else as_json, BINARY if binary else JSON)
    readers = {
        JSON: lambda: _of_json(body, data_types),
        FORM: lambda: _form_of(headers, body),
        NPY: lambda: _of_arrays(body, NPY),
        NPZ: lambda: _of_arrays(body, NPZ),
    }
    if media_type not in readers:
        raise error(Reason.MALFORMED_REQUEST, f"content-type is {media_type!r:.60}, not one of {', '.join(readers)}")
    fields, inputs = await readers[media_type]()
    request = _request(verb, model, fields, inputs)
    write, kind = _writer(verb, accepted, of_arrays=media_type in (NPY, NPZ))
    return _RestRequest(wire_requests.encode(request).SerializeToString(), partial(_written, write), kind)


def _media_type_in(headers: Mapping[str, str]) -> str:
    """Returns the form that a request has, which is JSON where it says none."""
    return headers.get("content-type", JSON).partition(";")[0].strip().lower()


async def _contract_request(model: str, media_type: str, body: RequestBody) -> bytes:
    """Returns a request of the contract, sent in JSON or in binary, whose model is that of the path.

    Raises:
        CutawayError: the request cannot be read, or names another model.
    """
    kind = inspection_pb2.InspectRequest
    data = await body.read()
    if media_type == JSON:
        data = await json_messages.as_binary(kind, data)
    elif media_type != BINARY:
        raise error(Reason.MALFORMED_REQUEST, f"content-type is {media_type!r:.60}, not {JSON} or {BINARY}")
    # A RoutedRequest has one of its fields: the rest is not parsed.
    named = parse(worker_pb2.RoutedRequest, data, kind.DESCRIPTOR.full_name).model
    if named not in ("", model):
        raise error(Reason.INVALID_VALUE, f"is {named!r:.80}, and the path has {model!r:.80}; leave it out", "model")
    return data if named else data + kind(model=model).SerializeToString()


async def _of_json(body: RequestBody, data_types: _DataTypes) -> tuple[dict[str, Any], dict[str, Any]]:
    fields, inputs = await json_messages.converted(_parsed, await body.read())
    if "tensors" in inputs:
        inputs["tensors"] = _of_types(inputs["tensors"], await data_types())
    return fields, inputs


def _parsed(text: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    fields = json_messages.mapping_in(text)
    return fields, _inputs_of(fields.pop("instances", None))


async def _of_arrays(body: RequestBody, media_type: str) -> tuple[dict[str, Any], dict[str, Any]]:
    read = partial(_arrays_in, media_type=media_type, max_bytes=body.max_bytes)
    data = await body.read()
    return {}, {"tensors": await asyncio.to_thread(read, data) if media_type == NPZ else read(data)}  # NPZ is unpacked


def _request(verb: str, model: str, fields: Mapping[str, Any], inputs: Mapping[str, Any]) -> InspectRequest:
    """Returns the request with ``fields``, which are named as in a request file of the command line.

    The method of an explanation may be a field of its own.
    """
    fields = dict(fields)
    fields.pop("signature_name", None)  # of TensorFlow's protocol, which KServe's follows
    if verb == "explain" and "attributions" not in fields:
        options = fields.pop("options", {})
        if not isinstance(options, Mapping):
            raise error(Reason.INVALID_VALUE, "are the method's fields by name", "options")
        fields["attributions"] = [{"method": fields.pop("method", _DEFAULT_METHOD), **options}]
    return replace(read_request(fields), model=model, **inputs)


def _writer(verb: str, accepted: str, *, of_arrays: bool) -> tuple[Callable[[Any], bytes], str]:
    if NPZ in accepted or (of_arrays and JSON not in accepted and NPY not in accepted):
        return json_messages.as_npz, NPZ
    if NPY in accepted:
        return json_messages.as_npy, NPY
    explains = verb == "explain"
    return lambda result: json.dumps(
        json_messages.as_document(result, explains=explains), allow_nan=False
    ).encode(), JSON


def _written(write: Callable[[Any], bytes], reply: bytes) -> bytes:
    return write(wire_results.decode(inspection_pb2.InspectResponse.FromString(reply)))


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
        rest_request = await _read_rest_request(verb, model, request.headers, body, data_types)
        reply = await unless_gone(request, self._servicer.call("Inspect", rest_request.request, call))
        # A thread converts large replies.
        content = await json_messages.converted(rest_request.write, reply or b"")
        return Response(content, media_type=rest_request.media_type)


async def _program(request: Request, model: str, body: RequestBody) -> Response:
    """Returns a request as a program, without a call of the model."""
    data = await _contract_request(model, _media_type_in(request.headers), body)
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
