"""Parses a message, walks through all messages in it: how many fields, unknown fields, tensors, and the size of
compressed tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from cutaway.errors import CutawayError, Reason, at, error
from cutaway.schema.tensors import DTYPES, MAX_RANK
from cutaway.v1 import tensor_pb2
from cutaway.wire.enums import DATA_TYPE_NAMES
from cutaway.wire.framing import read_fields

M = TypeVar("M", bound=Message)


def parse(kind: type[M], data: bytes, name: str = "") -> M:
    """Returns the message of type ``kind`` in ``data``; ``name`` is that of its type for the caller, if it differs.

    Raises:
        InvalidArgument: ``MALFORMED_REQUEST``; ``INVALID_VALUE``, for more than `MAX_ENTRIES`.
    """
    name = name or kind.DESCRIPTOR.full_name
    check_entries(kind, data, name)
    try:
        return kind.FromString(data)
    except DecodeError:
        raise _malformed(data, name) from None


def _malformed(data: bytes, name: str) -> CutawayError:
    return error(Reason.MALFORMED_REQUEST, f"the {len(data)} bytes are not a {name}")


MAX_TEXT = 1000
"""The most characters of a text that is no input: of a name, of a key."""

MAX_ENTRIES = 100_000
"""The most fields of a message and of all messages in it; each element of a list is one, but packed numbers are one
together."""

_FREE_TEXTS = ("cutaway.v1.Argument.text",)


def check_entries(kind: type[Message], data: bytes, name: str) -> None:
    """Counts the fields of a message before it is parsed, where two bytes may become an object of a hundred; arguments
    and errors as of `parse`. Data of tensors are stepped over."""
    if len(data) <= MAX_ENTRIES * _MIN_FIELD_BYTES:
        return
    fields: Any = kind.DESCRIPTOR  # of several types in the stubs
    try:
        _count_entries(fields, memoryview(data), 0)
    except LookupError:
        raise _malformed(data, name) from None


_MIN_FIELD_BYTES = 2  # a tag, and a value or a length


def _count_entries(kind: Descriptor, message: memoryview, before: int) -> int:
    """Returns how many fields there are in ``message`` and ``before``; reads none after the first that is too many."""
    count = before
    nested = _message_fields(kind)
    for number, value in read_fields(message):
        count += 1
        if count > MAX_ENTRIES:
            field = kind.fields_by_number.get(number)
            what = f"the request has more than {MAX_ENTRIES} entries"
            raise error(Reason.INVALID_VALUE, what, "" if field is None else field.name)
        if number in nested and isinstance(value, memoryview):
            name, inner = nested[number]
            with at(name):
                count = _count_entries(inner, value, count)
    return count


@cache
def _message_fields(kind: Descriptor) -> dict[int, tuple[str, Descriptor]]:
    """Returns name and type of the fields that hold messages, by number: looking them up would be most of the work."""
    fields = ((field.number, field.name, field.message_type) for field in kind.fields)
    return {number: (name, inner) for number, name, inner in fields if inner is not None}


def check_structure(message: Message, path: str = "") -> None:
    """Checks ``message``, whose own path is ``path``, and every message in it, before anything is made of it.

    Raises:
        InvalidArgument: ``UNKNOWN_FIELD``, for a field that is not in this server's contract; ``INVALID_VALUE``, for a
            name of more than `MAX_TEXT` characters.
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
