"""Repeated fields: an error inside an element names the element."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from cutaway.errors import Reason, at, error

M = TypeVar("M")
T = TypeVar("T")


def each(field: str, function: Callable[[M], T], elements: Iterable[M]) -> list[T]:
    """What ``function`` makes of each element of ``field``.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, where a single value was given for several.
    """
    try:
        several = iter(elements)
    except TypeError:
        raise error(Reason.INVALID_VALUE, f"{elements!r:.80} is not several; put it in a tuple", field) from None
    made = []
    for index, element in enumerate(several):
        with at(f"{field}[{index}]"):
            made.append(function(element))
    return made


def distinct(field: str, elements: Iterable[T]) -> tuple[T, ...]:
    """The elements of ``field``, each there once.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, at the first that was there before.
    """
    found: dict[T, None] = {}

    def add(element: T) -> None:
        if element in found:
            raise error(Reason.INVALID_VALUE, f"{element} is there already; name each once")
        found[element] = None

    each(field, add, elements)
    return tuple(found)
