"""What a request by REST asks for, as a request of the contract, and the form of its reply."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from cutaway.errors import Reason, error
from cutaway.gateway.http import json_messages, replies
from cutaway.gateway.http.forms import form_of
from cutaway.gateway.http.instances import NPY, NPZ, arrays_in, inputs_of, of_types
from cutaway.gateway.http.request_body import RequestBody
from cutaway.request_reader.reader import read_request
from cutaway.requests import InspectRequest
from cutaway.v1 import inspection_pb2, worker_pb2
from cutaway.wire import requests as wire_requests
from cutaway.wire import results as wire_results
from cutaway.wire.message_walk import parse

DataTypes: TypeAlias = Callable[[], Awaitable[Mapping[str, str]]]

JSON, FORM, BINARY = "application/json", "multipart/form-data", "application/proto"

_DEFAULT_METHOD = "integrated_gradients"


class Asked(NamedTuple):
    """A request, and its reply's form.

    Attributes:
        request: a serialised InspectRequest.
        write: returns the reply for a serialised InspectResponse.
        media_type: of the reply.
    """

    request: bytes
    write: Callable[[bytes], bytes]
    media_type: str


async def asked_by(
    verb: str, model: str, headers: Mapping[str, str], body: RequestBody, max_bytes: int, data_types: DataTypes
) -> Asked:
    """Returns what a request asks for.

    Args:
        verb: ``predict``, ``explain`` or ``inspect``.
        model: its name, from the path.
        headers: what form the request has, and its reply shall have.
        body: the request.
        max_bytes: the largest size of arrays that a compressed file holds.
        data_types: returns those of the model's inputs, by name.

    Raises:
        CutawayError: the request cannot be read.
    """
    media_type = media_type_in(headers)
    accepted = headers.get("accept", "*/*")
    if verb == "inspect":
        return await _contract(model, media_type, accepted, body)
    readers = {
        JSON: lambda: _of_json(body, data_types),
        FORM: lambda: form_of(headers, body, max_bytes),
        NPY: lambda: _of_arrays(body, NPY, max_bytes),
        NPZ: lambda: _of_arrays(body, NPZ, max_bytes),
    }
    if media_type not in readers:
        raise error(Reason.MALFORMED_REQUEST, f"content-type is {media_type!r:.60}, not one of {', '.join(readers)}")
    fields, inputs = await readers[media_type]()
    request = _request(verb, model, fields, inputs)
    write, kind = _writer(verb, accepted, of_arrays=media_type in (NPY, NPZ))
    return Asked(wire_requests.encode(request).SerializeToString(), partial(_written, write), kind)


def media_type_in(headers: Mapping[str, str]) -> str:
    """Returns the form that a request has, which is JSON where it says none."""
    return headers.get("content-type", JSON).partition(";")[0].strip().lower()


async def contract_request(model: str, media_type: str, body: RequestBody) -> bytes:
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
    named = parse(
        worker_pb2.RoutedRequest, data, kind.DESCRIPTOR.full_name
    ).model  # one of its fields; the rest is not parsed
    if named not in ("", model):
        raise error(Reason.INVALID_VALUE, f"is {named!r:.80}, and the path has {model!r:.80}; leave it out", "model")
    return data if named else data + kind(model=model).SerializeToString()


async def _contract(model: str, media_type: str, accepted: str, body: RequestBody) -> Asked:
    data = await contract_request(model, media_type, body)
    binary = BINARY in accepted or (media_type == BINARY and JSON not in accepted)
    write = bytes if binary else partial(json_messages.text_of, inspection_pb2.InspectResponse)
    return Asked(data, write, BINARY if binary else JSON)


async def _of_json(body: RequestBody, data_types: DataTypes) -> tuple[dict[str, Any], dict[str, Any]]:
    fields, inputs = await json_messages.converted(_parsed, await body.read())
    if "tensors" in inputs:
        inputs["tensors"] = of_types(inputs["tensors"], await data_types())
    return fields, inputs


def _parsed(text: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    fields = json_messages.mapping_in(text)
    return fields, inputs_of(fields.pop("instances", None))


async def _of_arrays(body: RequestBody, media_type: str, max_bytes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    read = partial(arrays_in, media_type=media_type, max_bytes=max_bytes)
    data = await body.read()
    return {}, {"tensors": await asyncio.to_thread(read, data) if media_type == NPZ else read(data)}  # NPZ is unpacked


def _request(verb: str, model: str, fields: Mapping[str, Any], inputs: Mapping[str, Any]) -> InspectRequest:
    """Returns the request for the fields beside the inputs, which are those of a file of the command line; the method
    of an explanation may be a field of its own."""
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
        return replies.as_npz, NPZ
    if NPY in accepted:
        return replies.as_npy, NPY
    explains = verb == "explain"
    return lambda result: json.dumps(replies.as_document(result, explains=explains), allow_nan=False).encode(), JSON


def _written(write: Callable[[Any], bytes], reply: bytes) -> bytes:
    return write(wire_results.decode(inspection_pb2.InspectResponse.FromString(reply)))
