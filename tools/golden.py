"""Writes protos/testdata: messages that set every field of the contract, in each form that clients read.

    python -m tools.golden

Every client must decode each form to the same values, and encode those to the same bytes. The files are made from the
contract alone: a field's value follows from its number. A field that is removed, renumbered or of another type makes
the files, and so the tests of every client, differ from what was released.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format
from google.protobuf.descriptor import FieldDescriptor, OneofDescriptor
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from cutaway.v1 import inspection_pb2, inspection_service_pb2

DIRECTORY = Path(__file__).parents[1] / "protos" / "testdata"

ROOTS: tuple[type[Message], ...] = (
    inspection_pb2.InspectRequest,
    inspection_pb2.InspectResponse,
    inspection_service_pb2.InspectStreamRequest,
    inspection_service_pb2.InspectStreamResponse,
    inspection_service_pb2.GetModelRequest,
    inspection_service_pb2.GetModelResponse,
    inspection_service_pb2.ListModelsRequest,
    inspection_service_pb2.ListModelsResponse,
)

_DEPTH = 9
"""How deep messages are filled; those that hold their own kind would have no end."""


def reached(message: Any, seen: set[str]) -> Iterator[Any]:
    """Yields a message and all that its fields hold, as descriptors, but those in ``seen``, and entries of maps."""
    if message.full_name in seen:
        return
    seen.add(message.full_name)
    if not message.GetOptions().map_entry:
        yield message
    for field in message.fields:
        if field.message_type is not None:
            yield from reached(field.message_type, seen)


def messages() -> Iterator[tuple[str, Message]]:
    """Yields every message by its name: of each root as many as a single oneof in it has kinds."""
    for root in ROOTS:
        several = 1 if root is inspection_service_pb2.InspectStreamRequest else _variants(root.DESCRIPTOR, set())
        for variant in range(several):
            message = root()
            _fill(message, variant, _DEPTH, lists=variant == 0)
            yield f"{root.DESCRIPTOR.name}.{variant}", message
    yield "Status.0", _status()


def _status() -> Any:
    """Returns the error that has all details."""
    status = status_pb2.Status(code=3, message="attributions[0].n_steps: is 0 to 10000")
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason="INVALID_VALUE", domain="cutaway.dev"))
    violation = error_details_pb2.BadRequest.FieldViolation(
        field="attributions[0].n_steps", description="is 0 to 10000"
    )
    status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromMilliseconds(200)
    status.details.add().Pack(retry)
    return status


def _variants(message: Any, seen: set[str]) -> int:
    """Returns how many kinds the largest oneof has that is reached by single fields only."""
    if message.full_name in seen:
        return 1
    seen.add(message.full_name)
    below = (
        _variants(field.message_type, seen)
        for field in message.fields
        if field.message_type is not None and not field.is_repeated
    )
    return max([*(len(oneof.fields) for oneof in _oneofs(message)), *below, 1])


def _oneofs(message: Any) -> list[OneofDescriptor]:
    """Returns the real ones; `optional` fields have one each, too."""
    return [oneof for oneof in message.oneofs if not oneof.name.startswith("_")]


def _fill(message: Message, variant: int, depth: int, *, lists: bool = True) -> None:
    """Sets every field; of each oneof, the kind number ``variant``. With ``lists``, those and maps, too: they have an
    element of each kind."""
    descriptor = message.DESCRIPTOR
    chosen = [oneof.fields[variant % len(oneof.fields)] for oneof in _oneofs(descriptor)]
    for field in descriptor.fields:
        real = field.containing_oneof is not None and not field.containing_oneof.name.startswith("_")
        if real and field not in chosen:
            continue
        if field.is_repeated and lists:
            _fill_several(message, field, variant, depth)
        elif not field.is_repeated and field.message_type is not None:
            if depth:
                below = getattr(message, field.name)
                below.SetInParent()
                _fill(below, variant, depth - 1)
        elif not field.is_repeated:
            setattr(message, field.name, _scalar(field, variant))


def _fill_several(message: Message, field: FieldDescriptor, variant: int, depth: int) -> None:
    several = getattr(message, field.name)
    below = field.message_type
    if below is not None and below.GetOptions().map_entry:
        value = below.fields_by_name["value"]
        if value.message_type is None:
            several["name"] = _scalar(value, variant)
        elif depth:
            for kind in range(_variants(value.message_type, set())):
                _fill(several[f"name {kind}"], kind, depth - 1)
    elif below is None:
        several.extend(
            _scalar(field, number) for number in range(len(field.enum_type.values) if field.enum_type else 2)
        )
    elif depth:
        enums = (len(each.enum_type.values) for each in below.fields if each.enum_type is not None)
        for kind in range(max(_variants(below, set()), *enums, 0)):
            _fill(several.add(), kind, max(0, depth - 2))
        for oneof in _oneofs(below):  # and what the fields of a oneof are one of themselves
            for kind, inner in enumerate(oneof.fields):
                for other in range(_direct(inner)):
                    element = several.add()
                    _fill(element, kind, max(0, depth - 2))
                    getattr(element, inner.name).Clear()
                    _fill(getattr(element, inner.name), other, max(0, depth - 3))


def _direct(field: FieldDescriptor) -> int:
    """Returns how many kinds the message in a field has of its own, or values of an enum."""
    below: Any = field.message_type
    if below is None:
        return 0
    enums = (len(each.enum_type.values) for each in below.fields if each.enum_type is not None)
    return max((*(len(oneof.fields) for oneof in _oneofs(below)), *enums), default=0)


def _scalar(field: FieldDescriptor, variant: int) -> Any:
    """Returns a value that no other field has, as far as the type allows."""
    if field.enum_type is not None:
        values = field.enum_type.values
        return values[(variant + 1) % len(values) or 1].number  # zero would be left out
    kinds = {
        FieldDescriptor.CPPTYPE_STRING: f"{field.name} é" if field.type == FieldDescriptor.TYPE_STRING else b"\x00\xff",
        FieldDescriptor.CPPTYPE_BOOL: True,
        FieldDescriptor.CPPTYPE_DOUBLE: field.number + 0.1,
        FieldDescriptor.CPPTYPE_FLOAT: field.number + 0.5,
        FieldDescriptor.CPPTYPE_INT64: -(2**53) - field.number,
        FieldDescriptor.CPPTYPE_UINT64: 2**63 + field.number,
        FieldDescriptor.CPPTYPE_INT32: -field.number,
        FieldDescriptor.CPPTYPE_UINT32: 2**31 + field.number,
    }
    return kinds[field.cpp_type]


def forms(message: Message) -> dict[str, bytes]:
    """Returns the content of a message's files by their suffix."""
    return {
        "binpb": message.SerializeToString(deterministic=True),
        "json": f"{json_format.MessageToJson(message, indent=1, ensure_ascii=False, sort_keys=True)}\n".encode(),
        "txtpb": text_format.MessageToString(message, as_utf8=True).encode(),
    }


def main() -> None:
    """Writes all files anew."""
    DIRECTORY.mkdir(exist_ok=True)
    for path in DIRECTORY.iterdir():
        path.unlink()
    for name, message in messages():
        for suffix, data in forms(message).items():
            (DIRECTORY / f"{name}.{suffix}").write_bytes(data)


if __name__ == "__main__":
    main()
