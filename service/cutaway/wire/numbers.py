"""Numbers that a field can hold: where Python's go past that, the error is ours and not protobuf's."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

from cutaway.errors import Reason, at, error
from cutaway.wire.repeated import each

UINT32 = range(2**32)
INT32 = range(-(2**31), 2**31)
INT64 = range(-(2**63), 2**63)


def whole(field: str, given: Any, allowed: range) -> int:
    """``given``, which is of Python, numpy or torch, as an integer among ``allowed``.

    Raises:
        InvalidArgument: ``INVALID_VALUE``.
    """
    with at(field):
        return _whole(given, allowed)


def whole_if_given(field: str, given: Any, allowed: range) -> int | None:
    """The same for a field that need not be set."""
    return None if given is None else whole(field, given, allowed)


def wholes(field: str, given: Iterable[Any], allowed: range) -> list[int]:
    """The same for a repeated field."""
    return each(field, lambda one: _whole(one, allowed), given)


def at_least_one(field: str, given: int) -> int:
    """``given``, a count; 0 is what a field holds that was never set.

    Raises:
        InvalidArgument: ``INVALID_VALUE``.
    """
    if given < 1:
        raise error(Reason.INVALID_VALUE, f"{given}; at least 1", field)
    return given


def real(field: str, given: Any) -> float:
    """``given`` as a float.

    Raises:
        InvalidArgument: ``INVALID_VALUE``.
    """
    try:
        return float(given)
    except (TypeError, ValueError, OverflowError):
        raise error(Reason.INVALID_VALUE, f"{given!r:.80} is no number that a double can hold", field) from None


def not_nan(field: str, given: float) -> float:
    """``given``, unless it is NaN.

    Raises:
        InvalidArgument: ``INVALID_VALUE``.
    """
    if math.isnan(given):
        raise error(Reason.INVALID_VALUE, "NaN is no number; send one", field)
    return given


def _whole(given: Any, allowed: range) -> int:
    try:
        number = operator.index(given)
    except TypeError:
        raise error(Reason.INVALID_VALUE, f"{given!r:.80} is no whole number") from None
    if number not in allowed:
        raise error(Reason.INVALID_VALUE, f"{number}; from {allowed[0]} to {allowed[-1]}")
    return number
