"""Conversion of numbers and strings to fields, and checks of what a field holds.

The checks are made here because protobuf's own errors do not name the field.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor

from cutaway.errors import Reason, error


class Scalar(NamedTuple):
    """Converts a number, string or enum member to the value of a field, and back."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


UNSET: Any = object()
"""What `Scalar.decode` returns for the value of a field that was never set, where the dataclass has its own default."""


def unchanged(value: Any) -> Any:
    """Returns ``value``."""
    return value


def whole(first: int, last: int) -> Scalar:
    """Returns the conversion of integers of Python, numpy and torch from ``first`` to ``last``."""

    def encode(value: Any) -> int:
        try:
            number = operator.index(value)
        except TypeError:
            raise error(Reason.INVALID_VALUE, f"{value!r:.80} is no whole number") from None
        if first <= number <= last:
            return number
        raise error(Reason.INVALID_VALUE, f"{number}; from {first} to {last}")

    return Scalar(encode, unchanged)


def encode_real(value: Any) -> float:
    """Returns ``value`` as a float.

    Raises:
        InvalidArgument: ``INVALID_VALUE``.
    """
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise error(Reason.INVALID_VALUE, f"{value!r:.80} is no number that a double can hold") from None


UINT32 = whole(0, 2**32 - 1)
INT64 = whole(-(2**63), 2**63 - 1)
REAL = Scalar(encode_real, unchanged)

NUMBERS: dict[int, Scalar] = {
    FieldDescriptor.CPPTYPE_INT32: whole(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: INT64,
    FieldDescriptor.CPPTYPE_UINT32: UINT32,
    FieldDescriptor.CPPTYPE_UINT64: whole(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: REAL,
    FieldDescriptor.CPPTYPE_BOOL: Scalar(bool, unchanged),
    FieldDescriptor.CPPTYPE_STRING: Scalar(unchanged, unchanged),
}
"""The conversions, by the type of the field."""


def at_least_one(value: int) -> int:
    """Returns ``value``, a count; 0 is also what a field holds that was never set.

    Raises:
        InvalidArgument: ``INVALID_VALUE``.
    """
    if value < 1:
        raise error(Reason.INVALID_VALUE, f"{value}; at least 1")
    return value


COUNT = Scalar(lambda value: at_least_one(UINT32.encode(value)), lambda number: number or UNSET)
"""A number of steps or samples; 0 is the default of the dataclass."""


def not_nan(value: float) -> None:
    """Raises `InvalidArgument` for NaN."""
    if math.isnan(value):
        raise error(Reason.INVALID_VALUE, "NaN is no number; send one")


def distinct(elements: Iterable[object]) -> None:
    """Raises `InvalidArgument` for the first element that is there twice."""
    seen = set()
    for index, element in enumerate(elements):
        if element in seen:
            raise error(Reason.INVALID_VALUE, f"{element} is there already; name each once", f"[{index}]")
        seen.add(element)


def bounded(is_allowed: Callable[[float], bool], allowed: str) -> Callable[[float], None]:
    """Returns a check that raises `InvalidArgument`, saying what is ``allowed``; ``is_allowed`` is False for NaN."""

    def check(value: float) -> None:
        if not is_allowed(value):
            raise error(Reason.INVALID_VALUE, f"{value}; {allowed}")

    return check


def given(missing: str) -> Callable[[object], None]:
    """Returns a check that raises `InvalidArgument` with the message ``missing`` for an empty value."""

    def check(value: object) -> None:
        if not value:
            raise error(Reason.INVALID_VALUE, missing)

    return check
