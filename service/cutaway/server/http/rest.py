"""REST, as KServe's first protocol has it: ``/v1/models``, ``:predict`` and ``:explain``.

``:inspect`` takes and returns the contract in JSON. ``:program`` returns a request as a program. All requests become
requests of the contract. Instances are inputs of a model: KServe's `instances`, forms, and numpy's files.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from cutaway.client.request_builder import request_inputs
from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.request_reader.reader import read_request
from cutaway.contract.requests import InspectRequest, Raw
from cutaway.contract.results import ModelName
from cutaway.contract.tensors import DTYPES, MAX_ARRAYS, Array, converted, read_npy, read_npz
from cutaway.contract.wire import models as wire_models
from cutaway.contract.wire import requests as wire_requests
from cutaway.contract.wire.message_walk import parse
from cutaway.server.http import json_messages
from cutaway.server.http.guarded import RequestBody, guarded, unless_gone
from cutaway.server.http.replies import BINARY, EVENTS, JSON, NPY, NPZ, chosen, streamed, writer
from cutaway.server.rpc.servicer import Servicer, listed_models
from cutaway.server.rpc.status import TranslatedCall
from cutaway.v1 import inspection_pb2, inspection_service_pb2, worker_pb2
from cutaway.views.programs import program_of, question_of

_FIELD = "instances"
_RIGHT = "instances are lists of numbers, texts, {b64: ..., media_type: ...}, or lists of numbers by input name"


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
        return request_inputs(instances, numbers="float64")


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
        return request_inputs({name: [each[name] for each in instances] for name in names}, numbers="float64")


def _of_types(tensors: Mapping[str, Array], data_types: Mapping[str, str]) -> dict[str, Array]:
    """Returns ``tensors`` with the types that the model takes: JSON has no types, and JavaScript writes 1.0 as 1.

    Raises:
        InvalidArgument: a number is none of the type.
    """
    only = next(iter(data_types.values())) if len(data_types) == 1 else ""
    return {name: _of_type(name, array, data_types.get(name, "" if name else only)) for name, array in tensors.items()}


def _of_type(name: str, array: Array, data_type: str) -> Array:
    """Returns numbers from JSON, which have 64 bits, as the data type that the model takes; if it declares none, floats
    as float32. Other arrays stay as they are: the model refuses those of a wrong type."""
    wanted = data_type or ("float32" if array.dtype == np.float64 else "")
    if wanted not in DTYPES or array.dtype.kind not in "if" or DTYPES[wanted].kind == "b":
        return array
    with at(f"tensors.by_name.{name}"):
        return converted(array, wanted)


_MEMBER = b"PK\x01\x02"  # begins each entry of an archive's directory


def _arrays_in(data: bytes, media_type: str, max_bytes: int) -> dict[str, Array]:
    """Returns the arrays in a file of numpy, by name; the array of an NPY file has the name "".

    Raises:
        InvalidArgument: ``MALFORMED_REQUEST``; ``INPUT_DTYPE`` for Python objects.
        ResourceExhausted: ``REQUEST_TOO_LARGE`` if they are larger than ``max_bytes`` together.
    """
    try:
        if media_type == NPY:
            return {"": read_npy(io.BytesIO(data))}
        if (count := data.count(_MEMBER)) > MAX_ARRAYS:  # counted before zipfile makes an object of each
            raise error(Reason.INVALID_VALUE, f"the file has {count} arrays, {MAX_ARRAYS} are the most")
        if (arrays := read_npz(io.BytesIO(data), max_bytes)) is None:
            raise error(Reason.REQUEST_TOO_LARGE, f"the arrays have more than {max_bytes} bytes")
    except ValueError as failure:
        raise error(Reason.MALFORMED_REQUEST, f"the request is no {media_type}: {failure}"[:300]) from None
    return arrays


# Forms are what a page or ``curl -F`` sends: files for the model to decode, and fields of the request.
_MAX_PARTS = 1100
_MAX_HEAD_BYTES = 8192
_RIGHT_FORM = "name each file `instances`, or an NPY file after its input"


class _Part(NamedTuple):
    """A part of a form; a file has a name or a media type of its own.

    Attributes:
        name: the field.
        media_type: empty where it is none.
        is_file: whether it is a file.
        data: its bytes.
    """

    name: str
    media_type: str
    is_file: bool
    data: bytes


def _form_of(content_type: str, max_bytes: int, data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the fields and the inputs in a form.

    Its files called ``instances`` are examples for the model to decode, of the media type that they have. NPY files
    with another name are tensors of that name. Its field ``request`` has the other fields of a request, in JSON; a
    field with another name is one of them.

    Raises:
        CutawayError: the form cannot be read.
    """
    fields: dict[str, Any] = {}
    examples: list[Raw] = []
    tensors: dict[str, Any] = {}
    for part in _parts(content_type, data):
        if not part.is_file:
            _add(fields, _fields(part.name, part.data))
        elif part.name == "instances":
            examples.append(Raw(part.data, part.media_type))
        else:
            _add(tensors, {part.name: _arrays_in(part.data, NPY, max_bytes)[""]})
    if examples and tensors:
        raise error(Reason.INVALID_VALUE, f"the form has examples and tensors; {_RIGHT_FORM}", "instances")
    if not (examples or tensors):
        raise error(Reason.INPUT_EMPTY, f"the form has no file; {_RIGHT_FORM}", "instances")
    return fields, {"raw": tuple(examples)} if examples else {"tensors": tensors}


def _parts(content_type: str, data: bytes) -> Iterator[_Part]:
    """Yields the parts of a form (RFC 7578), which are counted first."""
    _, options = parse_options_header(content_type)
    boundary = b"--" + options.get(b"boundary", b"")
    count = data.count(b"\r\n" + boundary)
    if count > _MAX_PARTS:
        raise error(Reason.INVALID_VALUE, f"the form has {count} parts, {_MAX_PARTS} are the most")
    if boundary == b"--" or not data.startswith(boundary):
        raise _no_form("it does not begin with the boundary in its content-type")
    position = len(boundary)
    while not data.startswith(b"--", position):
        begin = data.find(_BLANK, position, position + _MAX_HEAD_BYTES)
        end = data.find(b"\r\n" + boundary, begin)
        if begin < 0 or end < 0:
            raise _no_form(f"a part has no end, or no head of at most {_MAX_HEAD_BYTES} bytes")
        yield _part(data[position:begin], data[begin + len(_BLANK) : end])
        position = end + len(b"\r\n" + boundary)


_BLANK = b"\r\n\r\n"


def _part(head: bytes, data: bytes) -> _Part:
    lines = (line.partition(b":") for line in head.split(b"\r\n"))
    headers = {key.strip().lower(): value.strip() for key, _, value in lines}
    _, named = parse_options_header(headers.get(b"content-disposition", b""))
    encoding = headers.get(b"content-transfer-encoding", b"binary").lower()
    if b"name" not in named or encoding not in (b"binary", b"8bit", b"7bit"):
        raise _no_form("a part has no name, or its bytes are encoded: send them as they are")
    media_type = headers.get(b"content-type", b"").decode("latin-1")
    is_file = not named.keys().isdisjoint((b"filename", b"filename*"))
    return _Part(named[b"name"].decode(errors="replace"), media_type, is_file, data)


def _no_form(why: str) -> CutawayError:
    return error(Reason.MALFORMED_REQUEST, f"the form cannot be read: {why}")


def _fields(name: str, text: bytes) -> dict[str, Any]:
    """Returns the fields of a request in one field of the form; a text that is no JSON is the value itself."""
    with at(name):
        if name == "request":
            return json_messages.mapping_in(text)
        json_messages.check_json(text)
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return {name: text.decode(errors="replace")}
        return {name: json_messages.value_in(text)}


def _add(values: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Adds ``more`` to ``values`` from another place of a request; no name may have two values."""
    if twice := values.keys() & more.keys():
        raise error(Reason.INVALID_VALUE, "is given twice", f"{min(twice):.60}")
    values |= more


FORM = "multipart/form-data"
_DEFAULT_METHOD = "integrated_gradients"


class _Form(NamedTuple):
    """How a request by REST is read, and its reply written.

    Attributes:
        read: returns the fields and the inputs in a body.
        cost: returns how many bytes of a body are parsed, if the others are only copied.
        media_type: of the reply.
    """

    read: Callable[[bytes], tuple[dict[str, Any], dict[str, Any]]]
    cost: Callable[[bytes], int]
    media_type: str


def _form(headers: Headers, max_bytes: int) -> _Form:
    """Returns the form of a request, which its headers name.

    Raises:
        CutawayError: there is no such form.
    """
    media_type = _media_type_in(headers)
    readers: dict[str, Callable[[bytes], tuple[dict[str, Any], dict[str, Any]]]] = {
        JSON: _parsed,
        FORM: partial(_form_of, headers.get("content-type", ""), max_bytes),
        NPY: lambda data: ({}, {"tensors": _arrays_in(data, NPY, max_bytes)}),
        NPZ: lambda data: ({}, {"tensors": _arrays_in(data, NPZ, max_bytes)}),
    }
    if media_type not in readers:
        raise error(Reason.MALFORMED_REQUEST, f"content-type is {media_type!r:.60}, not one of {', '.join(readers)}")
    accepted = chosen(headers, (NPZ, NPY, JSON, EVENTS) if media_type in (NPY, NPZ) else (JSON, NPZ, NPY, EVENTS))
    cost = json_messages.cost if media_type == JSON else len if media_type != NPY else lambda _: 0
    return _Form(readers[media_type], cost, accepted)


def _media_type_in(headers: Mapping[str, str]) -> str:
    """Returns the form that a request has, which is JSON where it says none."""
    return headers.get("content-type", JSON).partition(";")[0].strip().lower()


def _contract_request(model: str, media_type: str, data: bytes) -> bytes:
    """Returns a request of the contract, sent in JSON or in binary, whose model is that of the path.

    Raises:
        CutawayError: the request cannot be read, or names another model.
    """
    kind = inspection_pb2.InspectRequest
    if media_type == JSON:
        data = json_messages.binary_of(kind, data)
    elif media_type != BINARY:
        raise error(Reason.MALFORMED_REQUEST, f"content-type is {media_type!r:.60}, not {JSON} or {BINARY}")
    # A RoutedRequest has one of its fields: the rest is not parsed.
    named = parse(worker_pb2.RoutedRequest, data, kind.DESCRIPTOR.full_name).model
    if named not in ("", model):
        raise error(Reason.INVALID_VALUE, f"is {named!r:.80}, and the path has {model!r:.80}; leave it out", "model")
    return data if named else data + kind(model=model).SerializeToString()


def _parsed(text: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    fields = json_messages.mapping_in(text)
    return fields, _inputs_of(fields.pop("instances", None))


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
        attribution = {"method": fields.pop("method", _DEFAULT_METHOD)}
        with at("options"):
            _add(attribution, options)
        fields["attributions"] = [attribution]
    return replace(read_request(fields), model=model, **inputs)


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
        guard = partial(guarded, self._servicer)
        return [
            Route("/v1/models", guard("ListModels", self._models), methods=["GET"]),
            Route(
                "/v1/models/{model:path}", guard("GetModel", self._model, flags=wire_models.DETAILS), methods=["GET"]
            ),
            Route("/v1/models/{model:path}", guard("Inspect", self._verb, flags=None), methods=["POST"]),
        ]

    async def _models(self, _: Request, call: TranslatedCall, __: RequestBody) -> Response:
        names = await listed_models(self._servicer, call)
        return JSONResponse({"models": list(dict.fromkeys(name.model for name in names))})

    async def _model(self, request: Request, call: TranslatedCall, _: RequestBody) -> Response:
        more = {name: name in request.query_params for name in wire_models.DETAILS}
        data = wire_models.encode_model_request(request.path_params["model"], **more)
        reply = await self._servicer.call("GetModel", data, call) or b""
        name = wire_models.decode_name(inspection_service_pb2.GetModelResponse.FromString(reply).model.model)
        as_text = partial(json_messages.text_of, inspection_service_pb2.GetModelResponse)
        detail = json.loads(await self._servicer.convert(as_text, reply, call))
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

    async def _verb(self, request: Request, call: TranslatedCall, body: RequestBody) -> Response:
        """Answers ``MODEL:VERB``."""
        model, _, verb = request.path_params["model"].rpartition(":")
        if verb not in _FIELDS_OF_VERB:
            what = f"{verb!r:.40} is none of predict, explain, inspect and program: POST /v1/models/NAME:predict"
            raise error(Reason.NOT_IMPLEMENTED, what)
        self._servicer.allow(model, *_FIELDS_OF_VERB[verb])
        query = _query(verb, request.query_params.multi_items())
        if verb == "program":
            return await self._program(request, model, body, call)
        if verb == "inspect":
            return await self._inspect(request, model, body, call)
        form = _form(request.headers, body.max_bytes)
        left = [await body.read()]
        data_types = await self._data_types(model, call) if _media_type_in(request.headers) == JSON else None
        read = partial(_serialized, form.read, verb, model, query, data_types)
        asked = self._servicer.convert(read, left[0], call, form.cost(left.pop()))
        return await self._answered(request, verb, await asked, form.media_type, call)

    async def _inspect(self, request: Request, model: str, body: RequestBody, call: TranslatedCall) -> Response:
        """Answers ``:inspect``: the body is an InspectRequest in JSON or protobuf. ``Accept`` chooses the reply."""
        media_type = _media_type_in(request.headers)
        accepted = chosen(request.headers, (BINARY, JSON, EVENTS) if media_type == BINARY else (JSON, BINARY, EVENTS))
        read = partial(_contract_request, model, media_type)
        asked = self._servicer.convert(read, await body.read(), call)
        return await self._answered(request, "inspect", await asked, accepted, call)

    async def _answered(
        self, request: Request, verb: str, data: bytes, media_type: str, call: TranslatedCall
    ) -> Response:
        """Returns the reply to a serialised InspectRequest, in the form ``media_type``."""
        if media_type == EVENTS:
            return await streamed(self._servicer, request, data, verb, call)
        running: Any = self._servicer.call("Inspect", data, call)  # None is a stream's alone
        del data
        if media_type == BINARY:
            return Response(await unless_gone(request, running), media_type=media_type)
        write = writer(verb, media_type)
        content = await self._servicer.convert(write, await unless_gone(request, running), call)
        return Response(content, media_type=media_type)

    async def _program(self, request: Request, model: str, body: RequestBody, call: TranslatedCall) -> Response:
        """Returns the source code of a client program that would send this request; the model is not called."""
        address = request.query_params.get("address", str(request.base_url))
        has_token = "authorization" in request.headers
        language = request.query_params.get("language", "python")
        media_type = _media_type_in(request.headers)

        def program(data: bytes) -> str:
            data = _contract_request(model, media_type, data)
            return program_of(question_of(data, address, has_token=has_token), language)

        return PlainTextResponse(await self._servicer.convert(program, await body.read(), call))


_FIELDS_OF_VERB = {
    "predict": ("model",),
    "explain": ("model", "attributions"),
    "inspect": ("model",),
    "program": ("model",),
}
"""The fields that a request has by its verb: whoever may not set them is refused before it is read."""

_QUERY = {"inspect": (), "program": ("language", "address")}
"""The parameters in the URL by verb; for the other verbs they are fields of the request, as in a form."""


def _query(verb: str, parameters: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Returns the parameters in a URL, none of which may be ignored.

    Raises:
        InvalidArgument: one is unknown, or comes twice.
    """
    found: dict[str, str] = {}
    for name, text in parameters:
        if name not in _QUERY.get(verb, (name,)):
            raise error(Reason.INVALID_VALUE, f"is no parameter of :{verb}", f"{name:.60}")
        _add(found, {name: text})
    return found


def _serialized(
    read: Callable[[bytes], tuple[dict[str, Any], dict[str, Any]]],
    verb: str,
    model: str,
    query: Mapping[str, str],
    data_types: Mapping[str, str] | None,
    data: bytes,
) -> bytes:
    """Returns the serialised InspectRequest in a body and a URL; arrays in JSON get the types that the model takes."""
    fields, inputs = read(data)
    del data
    for name, text in query.items():
        _add(fields, _fields(name, text.encode()))
    if "tensors" in inputs and data_types is not None:
        inputs["tensors"] = _of_types(inputs["tensors"], data_types)
    return wire_requests.serialize(_request(verb, model, fields, inputs))
