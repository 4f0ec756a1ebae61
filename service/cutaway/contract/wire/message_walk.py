"""Parsing within limits: counts of fields, unknown fields, tensors, and the size of compressed tensors."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any, NamedTuple, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.tensors import DTYPES, MAX_RANK, Buffer
from cutaway.contract.wire.scalars import DATA_TYPE_NAMES
from cutaway.v1 import tensor_pb2

# The wire format is read and written by hand, because protobuf would copy the bytes in a message.


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_MAX_SHIFT = 63  # of a number's tenth byte, the last one


def read_fields(view: Any) -> Iterator[tuple[int, Any]]:
    """Yields the number and value of each field of a serialised message; bytes are a view, without a copy, and numbers
    of a fixed size are None.

    Raises:
        IndexError, KeyError: the bytes are no message.
    """
    for number, value, _ in _fields(view):
        yield number, value


def places(view: Any, first: int, *path: int, begin: int = 0) -> Iterator[tuple[Any, int]]:
    """Yields the bytes of each field number ``first`` of a serialised message, or of those on the ``path`` within it,
    and where they begin if the message begins at ``begin``; raises as `read_fields`."""
    for number, value, end in _fields(view):
        if number == first and isinstance(value, memoryview):
            at_value = begin + end - len(value)
            yield from places(value, *path, begin=at_value) if path else ((value, at_value),)


def without_fields(data: Buffer, numbers: Collection[int]) -> bytes:
    """Returns a serialised message without the fields of these ``numbers``, which are stepped over; raises as
    `read_fields`."""
    parts, kept_from, begin = [], 0, 0
    for number, _, end in _fields(memoryview(data)):
        if number in numbers:
            parts.append(data[kept_from:begin])
            kept_from = end
        begin = end
    return b"".join((*parts, data[kept_from:]))


def _fields(view: Any) -> Iterator[tuple[int, Any, int]]:
    """Yields number, value and end of each field."""
    position = 0
    while position < len(view):
        tag, position = _varint(view, position)
        number, kind = tag >> 3, tag & 7
        value: Any
        if kind == _VARINT:
            value, position = _varint(view, position)
        else:
            size, position = _varint(view, position) if kind == _BYTES else ({_FIXED32: 4, _FIXED64: 8}[kind], position)
            if position + size > len(view):
                raise IndexError
            value = view[position : position + size] if kind == _BYTES else None
            position += size
        yield number, value, position


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    """Returns the number that begins at ``position``, and the position after it."""
    value = shift = 0
    while view[position] & 0x80:
        if shift == _MAX_SHIFT:
            raise IndexError
        value |= (view[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
    return value | view[position] << shift, position + 1


def prefix(field: int, size: int) -> bytes:
    """Returns the tag and length that precede ``size`` bytes in a field."""
    written: list[int] = []
    for number in (field << 3 | _BYTES, size):
        while number > 0x7F:
            written.append(number & 0x7F | 0x80)
            number >>= 7
        written.append(number)
    return bytes(written)


def field_of(number: int, *parts: Buffer) -> list[Buffer]:
    """Returns the parts of a field with bytes, or with a message."""
    return [prefix(number, sum(map(len, parts))), *parts]


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
        raise malformed(data, name) from None


def malformed(data: bytes, name: str) -> CutawayError:
    """Returns the error for ``data`` that are no message of the type ``name``."""
    return error(Reason.MALFORMED_REQUEST, f"the {len(data)} bytes are not a {name}")


MAX_TEXT = 1000
"""The most characters of a text that is no input: of a name, of a key."""

MAX_ENTRIES = 100_000
"""The most fields of a message and of all messages in it; each element of a list is one, but of packed numbers, each
`_PACKED_BYTES` are one."""

_PACKED_BYTES = 96
"""A number of one byte takes eight once it is parsed, and eight more while the list grows."""

_FREE_TEXTS = ("cutaway.v1.Argument.text",)


def check_entries(kind: type[Message], data: bytes, name: str) -> None:
    """Raises an error if a message has too many fields; arguments and errors as of `parse`.

    Parsing may make an object of a hundred bytes from two. Data of tensors are stepped over.
    """
    if len(data) <= COUNTED_BYTES:
        return
    fields: Any = kind.DESCRIPTOR  # of several types in the stubs
    try:
        _count_entries(fields, memoryview(data), 0, MAX_ENTRIES)
    except LookupError:
        raise malformed(data, name) from None


_FEW_ENTRIES = 200


def has_few_entries(kind: type[Message], data: bytes) -> bool:
    """Returns whether a message has so few fields that counting and parsing them takes no time."""
    fields: Any = kind.DESCRIPTOR
    try:
        _count_entries(fields, memoryview(data), 0, _FEW_ENTRIES)
    except (LookupError, CutawayError):
        return False
    return True


COUNTED_BYTES = 2 * MAX_ENTRIES
"""The size up to which a message cannot have too many fields: each has a tag, and a value or a length."""


def _count_entries(kind: Descriptor, message: memoryview, before: int, most: int) -> int:
    """Returns ``before`` plus the number of fields in ``message``, nested ones included; raises above ``most``."""
    count = before
    nested, packed = _message_fields(kind), _packed_fields(kind)
    for number, value in read_fields(message):
        count += 1 + (len(value) // _PACKED_BYTES if number in packed and isinstance(value, memoryview) else 0)
        if count > most:
            field = kind.fields_by_number.get(number)
            what = f"the request has more than {most} entries"
            raise error(Reason.INVALID_VALUE, what, "" if field is None else field.name)
        if number in nested and isinstance(value, memoryview):
            name, inner = nested[number]
            with at(name):
                count = _count_entries(inner, value, count, most)
    return count


@cache
def _packed_fields(kind: Descriptor) -> frozenset[int]:
    return frozenset(field.number for field in kind.fields if field.is_packed)


@cache
def _message_fields(kind: Descriptor) -> dict[int, tuple[str, Descriptor]]:
    """Returns name and type of the fields that hold messages, by number: looking them up would be most of the work."""
    fields = ((field.number, field.name, field.message_type) for field in kind.fields)
    return {number: (name, inner) for number, name, inner in fields if inner is not None}


def check_structure(message: Message, path: str = "", longest: float = MAX_TEXT) -> None:
    """Checks ``message``, whose own path is ``path``, and every message in it, before anything is made of it.

    Raises:
        InvalidArgument: ``UNKNOWN_FIELD``, for a field that is not in this server's contract; ``INVALID_VALUE``, for a
            name of more than ``longest`` characters.
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
                if kind.has_texts and len(text) > longest:
                    what = f"a text of {len(text)} characters; {longest} are the most"
                    raise error(Reason.INVALID_VALUE, what, where)
            for inner, child in children(field, value, where):
                check_structure(child, inner, longest)


class _Kind(NamedTuple):
    """The content of a field: whether it holds texts, a map, or messages that are no map's own entries."""

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
    """Returns the unpacked size of all compressed tensors in ``message``.

    A few compressed bytes may unpack to more than any request may have.
    """
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
