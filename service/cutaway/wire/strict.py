"""Nothing asked is ever left out in silence: every field that is set is one that is served, or an error names it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from cutaway.errors import Reason, error
from cutaway.tensors import DTYPES
from cutaway.v1 import tensor_pb2
from cutaway.wire.enums import DATA_TYPE_NAMES

# The fields served so far, for messages that are not yet served as a whole. Serving one more is one more word here.
SERVED: dict[str, frozenset[str]] = {
    f"cutaway.v1.{message}": frozenset(fields.split())
    for message, fields in {
        "InspectRequest": "model tensors raw target captures input_gradients edits compare attributions explain_if "
        "check options",
        "Options": "compression dry_run max_reply_bytes omit_predictions reply_data_type seed",
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


def refuse_swelling(messages: Iterable[Message], most: int | None) -> None:
    """Refuse packed tensors that a few bytes make larger than any request may be.

    Raises:
        ResourceExhausted: ``REQUEST_TOO_LARGE``.
    """
    tensors = (tensor for message in messages for tensor in _tensors(message))
    size = sum(_unpacked_bytes(tensor) for tensor in tensors if tensor.compression)
    if most is not None and size > most:
        raise error(
            Reason.REQUEST_TOO_LARGE,
            f"the packed tensors have {size} bytes once unpacked, {most} are allowed",
        )


def _unpacked_bytes(tensor: tensor_pb2.Tensor) -> int:
    """At least 0: a shape that is none is refused by whoever decodes it, and must make up for no other."""
    dtype = DTYPES.get(DATA_TYPE_NAMES.get(tensor.data_type, ""))
    return 0 if dtype is None else max(0, math.prod(tensor.shape)) * dtype.itemsize


def _tensors(message: Message) -> Iterator[tensor_pb2.Tensor]:
    if isinstance(message, tensor_pb2.Tensor):
        yield message
        return
    for field, value in message.ListFields():
        for _, child in _children(field, value, ""):
            yield from _tensors(child)


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
