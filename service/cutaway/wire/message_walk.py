"""Parses a message, walks through all messages in it: unknown fields, tensors, and the size of compressed tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from cutaway.errors import Reason, error
from cutaway.schema.tensors import DTYPES, MAX_RANK
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


MAX_TEXT = 1000
"""The most characters of a text that is no input: of a name, of a key."""

MAX_ENTRIES = 100_000
"""The most messages and texts of a list."""

_FREE_TEXTS = ("cutaway.v1.Argument.text",)


def check_structure(message: Message, path: str = "") -> None:
    """Checks ``message``, whose own path is ``path``, and every message in it, before anything is made of it.

    Raises:
        InvalidArgument: ``UNKNOWN_FIELD``, for a field that is not in this server's contract; ``INVALID_VALUE``, for a
            name of more than `MAX_TEXT` characters, or a list of more than `MAX_ENTRIES`.
    """
    unknown = UnknownFieldSet(message)
    if len(unknown):
        raise error(
            Reason.UNKNOWN_FIELD,
            f"{message.DESCRIPTOR.name} has no field number {unknown[0].field_number}; "
            "is the client newer than the server?",
            path,
        )
    check_lengths(message, path)
    for field, value in message.ListFields():
        for where, child in children(field, value, f"{path}.{field.name}" if path else field.name):
            check_structure(child, where)


def check_lengths(message: Message, path: str = "") -> None:
    """Checks the fields of ``message`` itself for what `check_structure` calls too long."""
    for field, value in message.ListFields():
        _check_lengths(field, value, f"{path}.{field.name}" if path else field.name)


def _check_lengths(field: FieldDescriptor, value: Any, path: str) -> None:
    if field.is_repeated:
        if field.type not in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_STRING):
            return  # numbers take no more room than in the message
        if len(value) > MAX_ENTRIES:
            raise error(Reason.INVALID_VALUE, f"{len(value)} entries; {MAX_ENTRIES} are the most", path)
        texts = value if field.type == FieldDescriptor.TYPE_STRING or _is_map(field) else ()
    else:
        texts = (value,) if field.type == FieldDescriptor.TYPE_STRING and field.full_name not in _FREE_TEXTS else ()
    for text in texts:
        if isinstance(text, str) and len(text) > MAX_TEXT:
            raise error(Reason.INVALID_VALUE, f"a text of {len(text)} characters; {MAX_TEXT} are the most", path)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


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
    return 0 if dtype is None or len(tensor.shape) > MAX_RANK else max(0, math.prod(tensor.shape)) * dtype.itemsize


def tensors_in(message: Message) -> Iterator[tensor_pb2.Tensor]:
    """Yields the tensors in ``message``, or ``message`` itself if it is one, in the order of the fields."""
    if isinstance(message, tensor_pb2.Tensor):
        yield message
        return
    for field, value in message.ListFields():
        for _, child in children(field, value, ""):
            yield from tensors_in(child)


def children(field: FieldDescriptor, value: Any, path: str) -> Iterator[tuple[str, Message]]:
    """Yields the messages in a field, each with its path."""
    if field.message_type is None:
        return
    if _is_map(field):
        if field.message_type.fields_by_name["value"].message_type is not None:
            yield from ((f"{path}.{key}", child) for key, child in value.items())
    elif field.is_repeated:
        yield from ((f"{path}[{index}]", child) for index, child in enumerate(value))
    else:
        yield path, value
