"""The protocol by HTTP: JSON, with the bytes of tensors behind it, or their numbers in it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from google.protobuf import json_format
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from cutaway.contract.errors import Reason, at, error
from cutaway.contract.results.document import numbers
from cutaway.contract.tensors import Buffer, from_bytes
from cutaway.server.http import json_messages
from cutaway.server.http.guarded import RequestBody, guarded, unless_gone
from cutaway.server.http.json_messages import MAX_ELEMENTS, text_in_pieces
from cutaway.server.open_inference.datatypes import BYTES, DATATYPES, byte_strings, messages, packed, with_lengths
from cutaway.server.open_inference.infer import (
    BINARY_OUTPUT,
    SIZE,
    Form,
    Inference,
    OpenInference,
    Sent,
    check_input,
    versioned,
)
from cutaway.server.rpc.status import TranslatedCall

_FIELDS = ("id", "parameters", "inputs", "outputs", "model_name", "model_version")  # the last two are KServe's
_OUTPUT_FIELDS = ("name", "parameters")
_INPUT_FIELDS = ("name", "shape", "datatype", "parameters", "data")
_MAX_PARAMETERS = 1000
_PARAMETERS = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}


def read(model: str, version: str, head_bytes: int | None, data: bytes) -> Sent:
    """Reads the body of a request; the bytes behind the JSON are not copied.

    Args:
        model: its name, from the path.
        version: its version, from the path.
        head_bytes: the size of the JSON at the body's beginning; None for all of it.
        data: the body.

    Raises:
        CutawayError: the body cannot be read.
    """
    if head_bytes is not None and head_bytes > len(data):
        raise error(Reason.MALFORMED_REQUEST, f"{head_bytes} bytes of JSON do not come: the request has {len(data)}")
    head = json_messages.mapping_in(data if head_bytes is None else data[:head_bytes])
    rest = memoryview(data)[len(data) if head_bytes is None else head_bytes :]
    message = messages.ModelInferRequest(model_name=model, model_version=version)
    return Sent(message, _fill(message, head, rest))


def _fill(message: Any, head: Mapping[str, Any], rest: memoryview) -> list[Buffer]:
    """Fills a ModelInferRequest, and returns the raw contents, which every input has."""
    _refuse_others(head, _FIELDS)
    _check_model(message, head)
    message.id = _required_text(head.get("id", ""), "id")
    _write_parameters(head.get("parameters"), message.parameters)
    for number, output in enumerate(_objects(head.get("outputs"), "outputs")):
        with at(f"outputs[{number}]"):
            _refuse_others(output, _OUTPUT_FIELDS)
            requested = message.outputs.add(name=_required_text(output.get("name"), "name"))
            _write_parameters(output.get("parameters"), requested.parameters)
    raw: list[Buffer] = []
    for number, tensor in enumerate(_objects(head.get("inputs"), "inputs")):
        with at(f"inputs[{number}]"):
            _refuse_others(tensor, _INPUT_FIELDS)
            data, rest = _write_input(tensor, rest, message)
            raw.append(data)
    if rest:
        raise error(Reason.TENSOR_SIZE, f"{len(rest)} bytes behind the JSON belong to no input: give {SIZE} of each")
    return raw


def _refuse_others(values: Mapping[str, Any], fields: Sequence[str]) -> None:
    for name in values:
        if name not in fields:
            raise error(Reason.UNKNOWN_FIELD, "the protocol has no such field", f"{name:.80}")


def _check_model(message: Any, head: Mapping[str, Any]) -> None:
    """Refuses a request whose model, where it names one, is not that of its path."""
    for field, named in (("model_name", message.model_name), ("model_version", message.model_version)):
        if head.get(field) not in (None, "", named):
            raise error(Reason.INVALID_VALUE, f"is not {named!r:.80}, which the path has; leave it out", field)


def _write_input(values: Mapping[str, Any], rest: memoryview, message: Any) -> tuple[Buffer, memoryview]:
    """Adds an input, and returns its elements, and what is left of ``rest``."""
    datatype = _required_text(values.get("datatype"), "datatype")
    tensor = message.inputs.add(name=_required_text(values.get("name"), "name"), datatype=datatype)
    try:
        tensor.shape.extend(values.get("shape"))
    except (TypeError, ValueError):
        raise error(Reason.INPUT_SHAPE, "is a list of whole numbers", "shape") from None
    _write_parameters(values.get("parameters"), tensor.parameters)
    size: int | None = tensor.parameters[SIZE].int64_param if SIZE in tensor.parameters else None
    check_input(tensor)
    if (size is None) == ("data" not in values):
        raise error(Reason.INVALID_VALUE, f"send either the numbers, or {SIZE} and the bytes behind the JSON", "data")
    if size is None:
        return _from_json(datatype, values["data"]), rest
    if not 0 <= size <= len(rest):
        what = f"{size} bytes do not follow: {len(rest)} are left behind the JSON"
        raise error(Reason.TENSOR_SIZE, what, f"parameters.{SIZE}")
    return rest[:size], rest[size:]


def _from_json(datatype: str, data: Any) -> bytes:
    """Returns the elements of a tensor; texts of BYTES are UTF-8."""
    if not isinstance(data, list):
        raise error(Reason.INVALID_VALUE, "is a list", "data")
    if datatype != BYTES:
        return packed(datatype, data)
    if not all(isinstance(text, str) for text in data):
        raise error(Reason.INVALID_VALUE, "are texts; send other bytes behind the JSON", "data")
    return with_lengths([text.encode() for text in data])


def _write_parameters(values: Any, parameters: Any) -> None:
    if not isinstance(values, Mapping | None):
        raise error(Reason.INVALID_VALUE, "are values by name", "parameters")
    if len(values or ()) > _MAX_PARAMETERS:
        what = f"there are {len(values or ())}, {_MAX_PARAMETERS} are the most"
        raise error(Reason.INVALID_VALUE, what, "parameters")
    for name, value in (values or {}).items():
        try:
            setattr(parameters[name], _PARAMETERS[type(value)], value)
        except (KeyError, ValueError):
            what = "is true, false, a whole number of 64 bits, a number or a text"
            raise error(Reason.INVALID_VALUE, what, f"parameters.{name:.80}") from None


def _required_text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise error(Reason.INVALID_VALUE, "is a text", field)
    return value


def _objects(value: Any, field: str) -> Sequence[Mapping[str, Any]]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise error(Reason.INVALID_VALUE, "is a list of objects", field)
    return value


def write(inference: Inference, response: Any, data: Sequence[Buffer]) -> tuple[bytes, int | None]:
    """Returns the body of a ModelInferResponse, and the size of the JSON at its beginning; None for all of it.

    Raises:
        ResourceExhausted: ``REPLY_TOO_LARGE`` for more numbers than JSON holds.
    """
    binary = [inference.outputs.get(tensor.name, inference.as_bytes) for tensor in response.outputs]
    count = sum(math.prod(tensor.shape) for tensor, is_binary in zip(response.outputs, binary) if not is_binary)
    if count > MAX_ELEMENTS:
        what = f"the outputs have {count} numbers, and JSON holds at most {MAX_ELEMENTS}"
        raise error(Reason.REPLY_TOO_LARGE, f"{what}; ask for them with {BINARY_OUTPUT}")
    head = {"model_name": response.model_name, "model_version": response.model_version, "id": response.id}
    outputs = [_output(*output) for output in zip(response.outputs, data, binary)]
    behind = [raw for raw, is_binary in zip(data, binary) if is_binary]
    text = text_in_pieces({**head, **_parameters(response), "outputs": outputs}).encode()
    return b"".join([text, *behind]), len(text) if behind else None


def _output(tensor: Any, raw: Buffer, as_bytes: bool) -> dict[str, Any]:
    output = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape), **_parameters(tensor)}
    if as_bytes:
        return {**output, "parameters": {**output.get("parameters", {}), SIZE: len(raw)}}
    if tensor.datatype == BYTES:
        return {**output, "data": [bytes(text).decode() for text in byte_strings(raw)]}
    return {**output, "data": numbers(from_bytes(DATATYPES[tensor.datatype], tensor.shape, raw).ravel())}


def _parameters(message: Any) -> dict[str, Any]:
    values = {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in message.parameters.items()}
    return {"parameters": values} if values else {}


HEAD_BYTES = "inference-header-content-length"
"""The header with the size of the JSON, if bytes follow it."""

_MODEL = "/v2/models/{model}"

_JSON = "application/json"


def routes(methods: OpenInference) -> list[BaseRoute]:
    """Returns the protocol's routes. Everybody may ask whether the server is live and ready."""

    def route(path: str, name: str, handler: Callable[..., Awaitable[Response]], verb: str = "GET") -> Route:
        # Errors are plain JSON: KServe's client reads them from nothing else.
        return Route(path, guarded(methods.servicer, name, partial(handler, methods), _JSON), methods=[verb])

    served = [
        Route("/v2/health/live", lambda _: JSONResponse({"live": True}), methods=["GET"]),
        Route("/v2/health/ready", partial(_ready, methods), methods=["GET"]),
        route("/v2", "GetModel", _server),
    ]
    for path in (f"{_MODEL}/versions/{{version}}", _MODEL):
        served += [
            route(f"{path}/infer", "Inspect", _infer, "POST"),
            route(f"{path}/ready", "GetModel", _model_ready),
            route(path, "GetModel", _model),
        ]
    return [*served, *(route("/v2/{path:path}", "GetModel", _unserved, verb) for verb in ("GET", "POST"))]


async def _ready(methods: OpenInference, _: Request) -> Response:
    return _readiness({}, await methods.server_ready())


async def _server(methods: OpenInference, _: Request, __: TranslatedCall, ___: RequestBody) -> Response:
    return _json(await methods.server_metadata())


async def _model_ready(methods: OpenInference, request: Request, _: TranslatedCall, __: RequestBody) -> Response:
    model, version = _named(request)
    return _readiness({"name": model}, await methods.model_ready(versioned(model, version)))


async def _model(methods: OpenInference, request: Request, call: TranslatedCall, _: RequestBody) -> Response:
    return _json(await methods.model_metadata(versioned(*_named(request)), call))


async def _unserved(_: OpenInference, request: Request, __: TranslatedCall, ___: RequestBody) -> Response:
    """Refuses the methods of the protocol's extensions."""
    what = "shared memory is not served: send the bytes" if "sharedmemory" in request.url.path else "is not served"
    raise error(Reason.NOT_IMPLEMENTED, f"{request.method} {request.url.path:.100}: {what}")


async def _infer(methods: OpenInference, request: Request, call: TranslatedCall, body: RequestBody) -> Response:
    servicer, form = methods.servicer, Form(partial(read, *_named(request), _head_bytes(request)), write)
    servicer.allow(versioned(*_named(request)), "model")
    left = [await body.read()]
    cost = json_messages.cost(left[0][: _head_bytes(request)])
    reply, head_bytes = await unless_gone(request, methods.infer(left.pop(), form, call, cost))
    if head_bytes is None:
        return Response(reply, media_type=_JSON)
    return Response(reply, headers={HEAD_BYTES: str(head_bytes)}, media_type="application/octet-stream")


def _head_bytes(request: Request) -> int | None:
    text = request.headers.get(HEAD_BYTES)
    if text is not None and not (text.isascii() and text.isdecimal() and len(text) <= 12):
        raise error(Reason.INVALID_VALUE, "is a number of bytes", HEAD_BYTES)
    return None if text is None else int(text)


def _named(request: Request) -> tuple[str, str]:
    """Returns the model and the version in the path."""
    return request.path_params["model"], request.path_params.get("version", "")


def _readiness(known: dict[str, Any], message: Any) -> Response:
    status = HTTPStatus.OK if message.ready else HTTPStatus.SERVICE_UNAVAILABLE
    return JSONResponse({**known, "ready": message.ready}, status)


def _json(message: Any) -> Response:
    """Returns metadata; sizes of axes are numbers, which protobuf's JSON has as texts."""
    metadata = json_format.MessageToDict(message, preserving_proto_field_name=True)
    for tensor in (*metadata.get("inputs", ()), *metadata.get("outputs", ())):
        tensor["shape"] = [int(size) for size in tensor.get("shape", ())]
    return JSONResponse(metadata)
