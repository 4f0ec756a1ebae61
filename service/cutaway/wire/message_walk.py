"""Parses a message, walks through all messages in it: unknown fields, tensors, and the size of compressed tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from cutaway.errors import Reason, error
from cutaway.schema.tensors import DTYPES
from cutaway.v1 import tensor_pb2
from cutaway.wire.enums import DATA_TYPE_NAMES

M = TypeVar("M", bound=Message)


def parse(kind: type[M], data: bytes, name: str = "") -> M:
    """Returns the message of type ``kind`` in ``data``; ``name`` is that of its type for the caller, if it differs.

    Raises:
        InvalidArgument: ``MALFORMED_REQUEST``.
    """
    try:
        return kind.FromString(data)
    except DecodeError:
        what = f"the {len(data)} bytes are not a {name or kind.DESCRIPTOR.full_name}"
        raise error(Reason.MALFORMED_REQUEST, what) from None


def refuse_unknown_fields(message: Message, path: str = "") -> None:
    """Checks ``message``, whose own path is ``path``, and every message in it.

    Raises:
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
    for field, value in message.ListFields():
        for where, child in _children(field, value, f"{path}.{field.name}" if path else field.name):
            refuse_unknown_fields(child, where)


def refuse_large_unpacked(messages: Iterable[Message], limit: int | None) -> None:
    """Checks the size that the compressed tensors in ``messages`` have together once unpacked: a few compressed bytes
    may unpack to more than any request may have.

    Args:
        messages: the parts of one request.
        limit: in bytes; None for no limit.

    Raises:
        ResourceExhausted: ``REQUEST_TOO_LARGE``.
    """
    tensors = (tensor for message in messages for tensor in tensors_in(message))
    size = sum(_unpacked_bytes(tensor) for tensor in tensors if tensor.compression)
    if limit is not None and size > limit:
        raise error(
            Reason.REQUEST_TOO_LARGE,
            f"the packed tensors have {size} bytes once unpacked, {limit} are allowed",
        )


def _unpacked_bytes(tensor: tensor_pb2.Tensor) -> int:
    """Never negative: decoding refuses an invalid shape later, and it must not offset the size of another tensor."""
    dtype = DTYPES.get(DATA_TYPE_NAMES.get(tensor.data_type, ""))
    return 0 if dtype is None else max(0, math.prod(tensor.shape)) * dtype.itemsize


def tensors_in(message: Message) -> Iterator[tensor_pb2.Tensor]:
    """Yields the tensors in ``message``, or ``message`` itself if it is one, in the order of the fields."""
    if isinstance(message, tensor_pb2.Tensor):
        yield message
        return
    for field, value in message.ListFields():
        for _, child in _children(field, value, ""):
            yield from tensors_in(child)


def _children(field: FieldDescriptor, value: Any, path: str) -> Iterator[tuple[str, Message]]:
    """The messages in a field, each with its path."""
    if field.message_type is None:
        return
    if field.message_type.GetOptions().map_entry:
        if field.message_type.fields_by_name["value"].message_type is not None:
            yield from ((f"{path}.{key}", child) for key, child in value.items())
    elif field.is_repeated:
        yield from ((f"{path}[{index}]", child) for index, child in enumerate(value))
    else:
        yield path, value
