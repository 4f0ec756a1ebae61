"""Reads JSON that others have written: each key once, no deeper than Python can read, and no number that it cannot."""

from __future__ import annotations

import encodings.utf_8_sig  # noqa: F401  # Python imports it on first use, but not where no file can be opened
import json
import math
from collections.abc import Iterable
from typing import Any

MAX_DEPTH = 100
"""The most mappings and lists inside one another; functions that walk the value call themselves."""

_TOO_DEEP = f"it is nested too deeply: at most {MAX_DEPTH} objects and lists inside one another"


class NumberTooLargeError(ValueError):
    """A number of which Python makes an infinite one.

    Args:
        place: of the number (``instances[0][3]``); empty if it is all of the text.
    """

    def __init__(self, place: str) -> None:
        super().__init__(f"{place or 'it'} is too large for a number")
        self.place = place


def read_json(text: str | bytes) -> Any:
    """Returns the value of a JSON text.

    Raises:
        ValueError: the text is no JSON, is nested too deeply, or has a key twice in one object: readers differ in which
            of the two counts.
        NumberTooLargeError: a number is infinite that is not called ``Infinity``.
    """
    text = text if isinstance(text, str) else text.decode("utf-8-sig")
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_too_deep(value):
        raise ValueError(_TOO_DEEP)
    place = _infinite([value]) if _may_overflow(text) else None
    if place is not None and "Infinity" in text:
        place = _infinite([json.loads(text, parse_constant=lambda _: None)])
    if place is not None:
        raise NumberTooLargeError(place.removeprefix("[0]").removeprefix("."))
    return value


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for each in level if isinstance(each, (dict, list)) for item in _items(each)]
    return any(isinstance(each, (dict, list)) for each in level)


_DIGITS = bytes.maketrans(b"123456789E", b"000000000e")


def _may_overflow(text: str) -> bool:
    """Returns whether a number of the text may be beyond 1e308: it has an exponent of three digits, or 200 digits.

    It spares a walk over all values, which takes longer than the parser.
    """
    plain = text.encode("utf-8", "surrogatepass").translate(_DIGITS, b"+")
    return b"e000" in plain or b"0" * 200 in plain


def _infinite(value: dict[str, Any] | list[Any]) -> str | None:
    """Returns the path of the first infinite number in ``value``, such as ``.x[0]``; None if all numbers are finite."""
    items = _items(value)
    has_one = _INFINITE in items or -_INFINITE in items  # at the speed of C: there may be a million
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        found = None
        if isinstance(item, (dict, list)):
            found = _infinite(item)
        elif has_one and item in (_INFINITE, -_INFINITE):
            found = ""
        if found is not None:
            return f".{key}{found}" if isinstance(value, dict) else f"[{key}]{found}"
    return None


_INFINITE = math.inf


def _items(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for index, key in enumerate(keys) if key in keys[:index])
        raise ValueError(f"the key {twice!r:.80} is there twice")
    return mapping
