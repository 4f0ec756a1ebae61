"""Descriptions of models: `cutaway.v1.GetModelRequest` and `cutaway.v1.ModelDetail`."""

from __future__ import annotations

from cutaway.contract import results as plain
from cutaway.contract.wire.codec import Codec, FieldRule, record, several
from cutaway.contract.wire.message_walk import check_structure, parse
from cutaway.contract.wire.results import NAMED_TENSORS, PROVENANCE
from cutaway.v1 import inspection_service_pb2, model_pb2

DETAILS = ("operators", "example", "data_flow")
"""The fields of a request for more than the model's outline."""


def encode_model_request(
    model: str, *, operators: bool = False, example: bool = False, data_flow: bool = False
) -> bytes:
    """Returns a serialised `cutaway.v1.GetModelRequest`."""
    return inspection_service_pb2.GetModelRequest(
        model=model, operators=operators, example=example, data_flow=data_flow
    ).SerializeToString()


def decode_model_request(data: bytes) -> inspection_service_pb2.GetModelRequest:
    """Returns the message in ``data``; no bytes are a request for the model alone, without operators and example.

    Raises:
        InvalidArgument: ``MALFORMED_REQUEST``, or ``UNKNOWN_FIELD``.
    """
    message = parse(inspection_service_pb2.GetModelRequest, data)
    check_structure(message)
    return message


def encode_name(name: plain.ModelName) -> model_pb2.Model:
    """Returns a model name with its version as a message."""
    return model_pb2.Model(name=f"models/{name.model}/versions/{name.version}", model=name.model, version=name.version)


def decode_name(message: model_pb2.Model) -> plain.ModelName:
    """Returns the model name in ``message``."""
    return plain.ModelName(message.model, message.version)


_UNSERVED = record(plain.UnservedArchive, model_pb2.UnservedArchive)


def encode_unserved(item: plain.UnservedArchive) -> model_pb2.UnservedArchive:
    """Returns ``item`` as a message."""
    message = model_pb2.UnservedArchive()
    _UNSERVED.write(item, message)
    return message


def decode_unserved(message: model_pb2.UnservedArchive) -> plain.UnservedArchive:
    """Returns the archive in ``message``."""
    item: plain.UnservedArchive = _UNSERVED.read(message)
    return item


_DETAIL = record(
    plain.ModelDetail,
    model_pb2.ModelDetail,
    {
        "model": FieldRule(codec=Codec(lambda name, message: message.CopyFrom(encode_name(name)), decode_name)),
        "inputs": FieldRule(codec=several(record(plain.InputSpec, model_pb2.InputSpec))),
        "outputs": FieldRule(codec=several(record(plain.OutputSpec, model_pb2.OutputSpec))),
        "modules": FieldRule(codec=several(record(plain.ModuleInfo, model_pb2.Module))),
        "provenance": FieldRule(codec=PROVENANCE),
        "operators": FieldRule(codec=several(record(plain.OperatorInfo, model_pb2.Operator))),
        "example": FieldRule(codec=NAMED_TENSORS),
        "data_flow": FieldRule(codec=several(record(plain.DataEdge, model_pb2.DataEdge))),
        "data_sets": FieldRule(codec=several(record(plain.DataSet, model_pb2.DataSet))),
    },
)


def encode(detail: plain.ModelDetail) -> model_pb2.ModelDetail:
    """Returns ``detail`` as a message."""
    message = model_pb2.ModelDetail()
    _DETAIL.write(detail, message)
    return message


def decode(message: model_pb2.ModelDetail) -> plain.ModelDetail:
    """Returns the description in ``message``."""
    detail: plain.ModelDetail = _DETAIL.read(message)
    return detail
