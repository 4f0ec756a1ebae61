"""Writes the description of the HTTP service, OpenAPI 3.1, from the contract: openapi.json beside its server."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from cutaway.client.transport import SERVICE
from cutaway.contract.errors import Reason
from cutaway.contract.requests import INPUT_FIELDS, InspectRequest
from cutaway.contract.values import __version__
from cutaway.server.http import guarded
from cutaway.server.http.replies import EVENTS, NPY, NPZ
from cutaway.v1 import inspection_service_pb2
from cutaway.views.programs import LANGUAGES
from tools.golden import reached

FILE = Path(__file__).parents[1] / "service" / "cutaway" / "server" / "http" / "openapi.json"

_JSON = "application/json"

_INTEGER = {"type": "integer"}
_LARGE_INTEGER = {"type": ["string", "integer"], "description": "a whole number of 64 bits"}
_NUMBER = {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}

_SCALARS: dict[int, dict[str, Any]] = {
    FieldDescriptor.TYPE_DOUBLE: _NUMBER,
    FieldDescriptor.TYPE_FLOAT: _NUMBER,
    FieldDescriptor.TYPE_INT32: _INTEGER,
    FieldDescriptor.TYPE_UINT32: _INTEGER,
    FieldDescriptor.TYPE_FIXED32: _INTEGER,
    FieldDescriptor.TYPE_INT64: _LARGE_INTEGER,
    FieldDescriptor.TYPE_UINT64: _LARGE_INTEGER,
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
}


def description() -> dict[str, Any]:
    """Returns the description."""
    service = inspection_service_pb2.DESCRIPTOR.services_by_name[SERVICE.rpartition(".")[2]]
    messages: dict[str, Descriptor] = {}
    for method in service.methods:
        for message in (method.input_type, method.output_type):
            messages |= {each.full_name: each for each in reached(message, set())}
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    known = _reference("cutaway.v1.GetModelResponse")
    paths: dict[str, Any] = {
        "/v1/models": {"get": _operation("Names of the models", {_JSON: _object(models=_list({"type": "string"}))})},
        "/v1/models/{model}": {
            "parameters": [model],
            "get": _operation("What goes in, what comes out, and the modules", {_JSON: known}),
        },
    }
    for verb, summary in (("predict", "Predictions"), ("explain", "Predictions and checked explanations")):
        asked = {_JSON: _instances(verb), "multipart/form-data": {"type": "object"}, NPY: {}, NPZ: {}}
        paths[f"/v1/models/{{model}}:{verb}"] = {
            "parameters": [model],
            "post": _operation(summary, {_JSON: {"type": "object"}, NPZ: {}, EVENTS: {}}, asked),
        }
    request, reply = (_reference(f"cutaway.v1.Inspect{kind}") for kind in ("Request", "Response"))
    paths["/v1/models/{model}:inspect"] = {
        "parameters": [model],
        "post": _operation("The contract in JSON, or in binary", {_JSON: reply, EVENTS: {}}, {_JSON: request}),
    }
    paths["/v1/models/{model}:program"] = {
        "parameters": [model, _query("language", {"enum": list(LANGUAGES)}), _query("address", {"type": "string"})],
        "post": _operation("A question as a program", {"text/plain": {"type": "string"}}, {_JSON: request}),
    }
    for method in service.methods:
        if not method.server_streaming:
            request, reply = _reference(method.input_type.full_name), _reference(method.output_type.full_name)
            paths[f"/{SERVICE}/{method.name}"] = {"post": _operation("By Connect", {_JSON: reply}, {_JSON: request})}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Cutaway", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "security": [{}, {"token": []}],
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {name: _schema(message) for name, message in messages.items()} | {"Problem": _problem()},
        },
    }


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema}


def _schema(message: Descriptor) -> dict[str, Any]:
    properties = {field.json_name: _of_field(field) for field in message.fields}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _of_field(field: FieldDescriptor) -> dict[str, Any]:
    below = field.message_type
    if below is not None and below.GetOptions().map_entry:
        return {"type": "object", "additionalProperties": _of_value(below.fields_by_name["value"])}
    return _list(_of_value(field)) if field.is_repeated else _of_value(field)


def _of_value(field: FieldDescriptor) -> dict[str, Any]:
    if field.message_type is not None:
        return _reference(field.message_type.full_name)
    if field.enum_type is not None:
        return {"enum": [value.name for value in field.enum_type.values]}
    return _SCALARS[field.type]


def _instances(verb: str) -> dict[str, Any]:
    """Returns the schema of a request as KServe has it, with the fields of a request file."""
    own = ("model", *INPUT_FIELDS)
    more: dict[str, Any] = {field.name: {} for field in fields(InspectRequest) if field.name not in own}
    if verb == "explain":
        more |= {"method": {"type": "string"}, "options": {"type": "object"}}
    shown = _object(instances={"type": "array", "minItems": 1, "items": {}}, **more)
    return shown | {"required": ["instances"]}


def _problem() -> dict[str, Any]:
    text = {"type": "string"}
    reason = {"enum": sorted(Reason)}
    return _object(type=text, title=text, status=_INTEGER, detail=text, reason=reason, field=text)


def _operation(summary: str, reply: dict[str, Any], request: dict[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": {"description": summary, "content": _content(reply)},
            "default": {
                "description": "what is wrong",
                "content": _content({guarded.MEDIA_TYPE: _reference("Problem")}),
            },
        },
    }
    return found if request is None else found | {"requestBody": {"required": True, "content": _content(request)}}


def _content(schemas: dict[str, Any]) -> dict[str, Any]:
    return {media_type: {"schema": schema} for media_type, schema in schemas.items()}


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def written() -> str:
    """Returns the text of the file."""
    return json.dumps(description(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(written())
