"""Requests and their parts, from mappings of field names to values."""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from enum import Enum
from functools import partial
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.requests import (
    Argument,
    Attribution,
    Edit,
    InspectRequest,
    LrpRule,
    Metric,
    Point,
    PointName,
    Reduction,
    Target,
    TokenId,
)
from cutaway.contract.tensors import Array
from cutaway.contract.wire.codec import OneOf, convert_each
from cutaway.contract.wire.methods import METHODS, METRICS, RULES
from cutaway.contract.wire.oneofs import REDUCTIONS, TARGETS, VERBS

# Single values of a request: numbers, texts, choices and arrays.


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


T = TypeVar("T")

_TABLES: dict[Any, tuple[str, OneOf[Any]]] = {
    Attribution: ("method", METHODS),
    Edit: ("edit", VERBS),
    Target: ("target", TARGETS),
    Reduction: ("reduction", REDUCTIONS),
    LrpRule: ("rule", RULES),
    Metric: ("metric", METRICS),
}
"""By base class, what people call its classes, and the table of them."""

CLASSES: dict[Any, dict[str, type]] = {base: dict(sorted(table.kinds.items())) for base, (_, table) in _TABLES.items()}
"""For each base class, the classes that a request can name, by their names in the contract."""


def read_request(value: Any) -> InspectRequest:
    """Reads a request without its model and its inputs.

    Args:
        value: a mapping of the other fields of `InspectRequest`. As in a job, ``check`` may be the mode alone, with
            ``relative_tolerance`` beside it, and ``input_gradients`` may be true or false.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, with the field at fault.
    """
    values = dict(mapping(value))
    if isinstance(values.get("input_gradients"), bool):
        values["input_gradients"] = [] if values["input_gradients"] else None
    if "relative_tolerance" in values:
        tolerance = values.pop("relative_tolerance")
        values["check"] = {"mode": values.get("check", "same_pass"), "relative_tolerance": tolerance}
    return InspectRequest(model="", **_arguments(InspectRequest, values, excluded=("model", "tensors", "raw")))


def read(kind: type[T], value: Any) -> T:
    """Reads one part of a request, such as an `Attribution`, a `Target` or a `Capture`.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, with the field at fault.
    """
    result: T = _read(kind, value)
    return result


def _read(hint: Any, value: Any) -> Any:
    """Reads ``value`` for a field with the type ``hint``."""
    if hint in READERS:
        return READERS[hint](value)
    if hint in CLASSES:
        return _read_named(hint, value)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):  # X | None
        return None if value is None else _read(arguments[0], value)
    if origin is tuple:
        return tuple(convert_each(partial(_read, arguments[0]), sequence(value)))
    if origin is Mapping:
        return map_values(partial(_read, arguments[1]), mapping(value))
    return member(hint, value) if issubclass(hint, Enum) else hint(**_arguments(hint, value))


def _read_named(base: Any, value: Any) -> Any:
    """Reads an object of one of the classes in ``CLASSES[base]``.

    Methods and edits have their name beside their fields, as in ``{edit: scale, factor: 2}``; all others have it around
    them, as in ``{gamma: {gamma: 0.5}}``. A name alone is an object without fields; for targets see `_named_target`.
    """
    noun, _ = _TABLES[base]
    if base in (Attribution, Edit):
        values = {noun: value} if isinstance(value, str) else dict(mapping(value))
        with at(noun):
            kind = _find_class(base, values.pop(noun, ""))
        return kind(**_arguments(kind, values))
    if base is Target:
        value = _named_target(value)
    if isinstance(value, str):
        value = {value: {}}
    if not isinstance(value, Mapping) or len(value) != 1:
        raise wrong_type(f"one {noun} by its name, which is one of {', '.join(CLASSES[base])}", value)
    ((name, value),) = value.items()
    kind = _find_class(base, name)
    with at(str(name)):
        return kind(**_arguments(kind, {} if value is None else value))


def _named_target(value: Any) -> Any:
    """Returns a target with its name. Whole numbers are class indices, and texts labels, unless one is, or nearly is,
    the name of a target."""
    several = value if isinstance(value, list) else [value]
    if several and all(isinstance(each, str) for each in several):
        return value if isinstance(value, str) and _may_name_target(value) else {"class_label": several}
    return {"class_index": value} if isinstance(value, (int, list)) else value


def _may_name_target(text: str) -> bool:
    names = [plain(alias) for field, kind in CLASSES[Target].items() for alias in (field, kind.__name__)]
    return bool(difflib.get_close_matches(plain(text), names, n=1, cutoff=0.8))  # a typo is not taken for a label


def _find_class(base: Any, name: Any) -> Any:
    """Returns the class of that name in the contract or in Python; capitals and underscores do not matter."""
    classes = CLASSES[base]
    known = {plain(alias): kind for field, kind in classes.items() for alias in (field, kind.__name__)}
    if plain(name) not in known:
        problem = f"there is no {_TABLES[base][0]} {name!r:.80}" if name else "is missing"
        raise error(Reason.INVALID_VALUE, f"{problem}; {suggestion(str(name), classes)}")
    return known[plain(name)]


def _arguments(kind: Any, value: Any, excluded: Collection[str] = ()) -> dict[str, Any]:
    """Reads the arguments of a dataclass.

    Args:
        kind: the dataclass. Its field ``module`` may also be called ``layer``, as in methods.
        value: a mapping of field names to values; or the value of the first field that is no keyword-only one.
        excluded: fields that the mapping must not have.
    """
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(kind) if field.name not in excluded}
    positional = [name for name, field in known.items() if not field.kw_only]
    if positional and not isinstance(value, Mapping):
        single = get_origin(hints[positional[0]]) is tuple and not isinstance(value, list)
        value = {positional[0]: [value] if single else value}
    values = {str(name): field_value for name, field_value in mapping(value).items()}
    if "layer" in values and "module" in known and "module" not in values:
        values["module"] = values.pop("layer")
    for name in values:
        if name not in known:
            raise error(Reason.INVALID_VALUE, f"{kind.__name__} has no such field; {suggestion(name, known)}", name)
    for name, field in known.items():
        if field.default is field.default_factory is MISSING and name not in values:
            raise error(Reason.INVALID_VALUE, f"{kind.__name__} needs this field", name)
    for name in values:
        with at(name):
            values[name] = _read(hints[name], values[name])
    return values
