"""Nothing asked is ever left out in silence: every field that is set is one that is served, or an error names it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from cutaway.errors import Reason, error

# The fields served so far, for messages that are not yet served as a whole. Serving one more is one more word here.
SERVED: dict[str, frozenset[str]] = {
    f"cutaway.v1.{message}": frozenset(fields.split())
    for message, fields in {
        "InspectRequest": "model tensors raw target captures input_gradients edits compare attributions explain_if "
        "check options",
        "Options": "max_reply_bytes omit_predictions seed",
    }.items()
}


def refuse_unserved(message: Message, path: str = "") -> None:
    """Walk all fields that are set.

    Raises:
        Unimplemented: ``NOT_IMPLEMENTED``, for a field of the contract that is not served yet.
        InvalidArgument: ``UNKNOWN_FIELD``, for a field that is not in this server's contract.
    """
    unknown = UnknownFieldSet(message)
    if len(unknown):
        raise error(
            Reason.UNKNOWN_FIELD,
            f"{message.DESCRIPTOR.name} has no field number {unknown[0].field_number}; "
            "is the client newer than the server?",
            path,
        )
    served = SERVED.get(message.DESCRIPTOR.full_name)
    for field, value in message.ListFields():
        here = f"{path}.{field.name}" if path else field.name
        if served is not None and field.name not in served:
            raise error(Reason.NOT_IMPLEMENTED, f"{field.name} is part of the contract but not served yet", here)
        for where, child in _children(field, value, here):
            refuse_unserved(child, where)


def _children(field: FieldDescriptor, value: Any, path: str) -> Iterator[tuple[str, Message]]:
    if field.message_type is None:
        return
    if field.message_type.GetOptions().map_entry:
        if field.message_type.fields_by_name["value"].message_type is not None:
            yield from ((f"{path}.{key}", child) for key, child in value.items())
    elif field.is_repeated:
        yield from ((f"{path}[{index}]", child) for index, child in enumerate(value))
    else:
        yield path, value
