"""What a field may hold: checks beside the field's type, ``Annotated[int, at_least_one]``.

`cutaway.contract.wire.codec` finds them by the type, and makes them when a message is read. Protobuf's own errors name
no field.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Annotated, TypeAlias

from cutaway.contract.errors import Reason, error


def at_least_one(value: int) -> int:
    """Returns ``value``, a count; 0 is also what a field holds that was never set.

    Raises:
        InvalidArgument: ``INVALID_VALUE``.
    """
    if value < 1:
        raise error(Reason.INVALID_VALUE, f"{value}; at least 1")
    return value


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


Probability: TypeAlias = Annotated[float, bounded(lambda value: 0 <= value <= 1, "a probability is from 0 to 1")]
Finite: TypeAlias = Annotated[float, bounded(lambda value: 0 <= value < math.inf, "a finite number from 0 up")]
Positive: TypeAlias = Annotated[float, bounded(lambda value: 0 < value < math.inf, "a finite number above 0")]
Number: TypeAlias = Annotated[float, not_nan]
Count: TypeAlias = Annotated[int, at_least_one]
