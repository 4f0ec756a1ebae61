"""Single values of a request: numbers, texts, choices and arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from cutaway.errors import CutawayError, Reason, at, error
from cutaway.requests import Argument, Point, PointName, TokenId
from cutaway.schema.tensors import Array
from cutaway.wire.codec import convert_each

E = TypeVar("E", bound=Enum)


def wrong_type(expected: str, value: Any) -> CutawayError:
    """Returns the error for a ``value`` that is not what its field takes."""
    return error(Reason.INVALID_VALUE, f"must be {expected}, not {value!r:.80}")


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns the name in ``known`` that is most like ``name``, or all of them, as the end of an error message."""
    known = list(known)
    near = get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"


def plain(name: object) -> str:
    """Returns ``name`` without underscores and capitals, so that ``LayerGradCam`` is the same as ``layer_grad_cam``."""
    return str(name).replace("_", "").lower()


def mapping(value: Any) -> Mapping[Any, Any]:
    """Returns ``value`` if it is a mapping."""
    if not isinstance(value, Mapping):
        raise wrong_type("a mapping of names to values", value)
    return value


def sequence(value: Any) -> list[Any] | tuple[Any, ...]:
    """Returns ``value`` if it is a list; a text is none."""
    if not isinstance(value, (list, tuple)):
        raise wrong_type("a list", value)
    return value


def map_values(function: Callable[[Any], Any], values: Mapping[Any, Any]) -> dict[str, Any]:
    """Applies ``function`` to each value of a mapping; an error names the value's key."""
    results = {}
    for name, value in values.items():
        with at(str(name)):
            results[str(name)] = function(value)
    return results


def member(kind: type[E], value: Any) -> E:
    """Reads a member of ``kind`` by its value or its name."""
    value = "off" if value is False else value  # which is what YAML makes of a bare off
    known = {plain(name): member for member in kind for name in (member.name, member.value)}
    if plain(value) not in known:
        choices = [str(member.value) for member in kind]
        raise error(Reason.INVALID_VALUE, f"{value!r:.80} is not a choice; {suggestion(str(value), choices)}")
    return known[plain(value)]


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise wrong_type("true or false", value)
    return value


def _integer(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_type("a whole number", value)
    return value


def _number(value: Any, expected: str = "a number") -> float:
    """Reads a number, also from a text: YAML reads ``1e-3`` as one."""
    try:
        if not isinstance(value, bool):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise wrong_type(expected, value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise wrong_type("a text; put it in quotes", value)
    return value


def _array(value: Any) -> Array:
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise wrong_type("a .npy file or lists of numbers", value)
    return array


def _number_or_array(value: Any, expected: str = "a number, a .npy file or lists of numbers") -> float | Array:
    return _array(value) if isinstance(value, (list, np.ndarray)) else _number(value, expected)


def _baseline(value: Any) -> float | Array | TokenId:
    if isinstance(value, Mapping) and set(value) == {"token_id"}:
        with at("token_id"):
            return TokenId(_integer(value["token_id"]))
    if isinstance(value, TokenId):
        return value
    return _number_or_array(value, "a number, a .npy file, lists of numbers or {token_id: 0}")


def _point(value: Any) -> Point:
    return member(Point, value)


def _points(value: Any) -> Point | tuple[Point, ...]:
    return tuple(convert_each(_point, value)) if isinstance(value, (list, tuple)) else _point(value)


def _argument(value: Any) -> Argument:
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise wrong_type("true, false, a number, a text or null", value)
    return value


READERS: Mapping[Any, Callable[[Any], Any]] = {
    Argument: _argument,
    bool: _boolean,
    int: _integer,
    float: _number,
    str: _text,
    Any: _array,  # ArrayLike
    float | Any: _number_or_array,
    float | Any | TokenId: _baseline,
    PointName | Point: _point,
    PointName | Point | tuple[PointName | Point, ...]: _points,
}
"""How a value is read, by the type of its field. Each raises ``INVALID_VALUE`` for a value of another type."""
