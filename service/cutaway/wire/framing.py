"""The wire format of protobuf, read and written by hand: bytes in a message are neither parsed nor copied."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_MAX_SHIFT = 63  # of a number's tenth byte, the last one


def read_fields(view: Any) -> Iterator[tuple[int, Any]]:
    """Yields the number and value of each field of a serialised message; bytes are a view, without a copy.

    Raises:
        IndexError, KeyError: the bytes are no message.
    """
    for number, value, _ in _fields(view):
        yield number, value


def without_fields(data: bytes, numbers: Collection[int]) -> bytes:
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
        if kind == _VARINT:
            value, position = _varint(view, position)
        else:
            size, position = _varint(view, position) if kind == _BYTES else ({_FIXED32: 4, _FIXED64: 8}[kind], position)
            if position + size > len(view):
                raise IndexError
            value = view[position : position + size]
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
    written = [field << 3 | _BYTES]
    while size > 0x7F:
        written.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*written, size])
