"""Serialised messages, field by field as they are on the wire, whatever a decoder would make of them."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet


def ambiguities(kind: Descriptor, data: bytes, path: str = "") -> Iterator[str]:
    """Yields what decoders may read differently in a serialised message of type ``kind`` and in all messages inside: a
    singular field, or a oneof, that occurs more than once, and a field that the contract does not have."""
    seen: set[str] = set()
    for occurrence in UnknownFieldSet(Empty.FromString(data)):
        field = kind.fields_by_number.get(occurrence.field_number)
        if field is None:
            yield f"{path}: no field {occurrence.field_number}"
            continue
        where = f"{path}.{field.name}"
        if not field.is_repeated:
            if _slot(field) in seen:
                yield f"{where}: once more"
            seen.add(_slot(field))
        if field.message_type is not None:
            yield from ambiguities(field.message_type, occurrence.data, where)


def _slot(field: FieldDescriptor) -> str:
    """The name that all members of a oneof have in common."""
    return field.containing_oneof.name if field.containing_oneof else field.name
