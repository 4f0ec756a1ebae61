"""Parses a message, walks through all messages in it: how many fields, unknown fields, tensors, and the size of
compressed tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple, TypeVar

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
    for field, value in message.ListFields():
        kind = _kind(field)
        if kind.has_texts or kind.has_messages:
            where = f"{path}.{field.name}" if path else field.name
            for text in value if field.is_repeated else (value,):
                if kind.has_texts and len(text) > MAX_TEXT:
                    what = f"a text of {len(text)} characters; {MAX_TEXT} are the most"
                    raise error(Reason.INVALID_VALUE, what, where)
            for inner, child in children(field, value, where):
                check_structure(child, inner)


class _Kind(NamedTuple):
    """What a walk asks of a field: whether it holds texts, a map, or messages that are no map's own entries."""

    has_texts: bool
    is_map: bool
    has_messages: bool


@cache
def _kind(field: FieldDescriptor) -> _Kind:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        keys, values = message.fields_by_name["key"], message.fields_by_name["value"]
        return _Kind(keys.type == FieldDescriptor.TYPE_STRING, True, values.message_type is not None)
    is_text = field.type == FieldDescriptor.TYPE_STRING and (field.is_repeated or field.full_name not in _FREE_TEXTS)
    return _Kind(is_text, False, message is not None)


def unpacked_bytes(message: Message) -> int:
    """Returns the size that the compressed tensors in ``message`` have together once unpacked: a few compressed bytes
    may unpack to more than any request may have."""
    return sum(stated_bytes(tensor) for tensor in tensors_in(message) if tensor.compression)


def refuse_large_unpacked(size: int, limit: int | None) -> None:
    """Raises ``REQUEST_TOO_LARGE`` if tensors have more than ``limit`` bytes once unpacked; None is no limit."""
    if limit is not None and size > limit:
        raise error(
            Reason.REQUEST_TOO_LARGE,
            f"the packed tensors have {size} bytes once unpacked, {limit} are allowed",
        )


def stated_bytes(tensor: tensor_pb2.Tensor) -> int:
    """Returns the size that a tensor has, unpacked, by its type and shape; 0 where they are not valid.

    Never negative: decoding refuses an invalid shape later, and it must not offset the size of another tensor."""
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
    kind = _kind(field)
    if not kind.has_messages:
        return
    if kind.is_map:
        yield from ((f"{path}.{key}", child) for key, child in value.items())
    elif field.is_repeated:
        yield from ((f"{path}[{index}]", child) for index, child in enumerate(value))
    else:
        yield path, value
