"""Reads requests and their parts from mappings, names, short forms, and objects of `cutaway.contract.requests`.

`Client.inspect`, YAML files, jobs and the options of the command line are all read here. Each accepts what the others
accept, and refuses the rest in the same words. An object is read again field by field, because its fields may hold
names in place of values: ``ca.Capture("conv1", at="GRAD_OUTPUT", reduce={"mean": [2, 3]})``.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, fields
from enum import Enum
from functools import cache, partial
from operator import index
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

import numpy as np

from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.requests import (
    INPUT_FIELDS,
    Argument,
    Attack,
    Attribution,
    AxisSizes,
    Baselines,
    Capture,
    Compression,
    ConceptExamples,
    Distributions,
    Edit,
    FloatingType,
    InspectRequest,
    LrpRule,
    Masks,
    Metric,
    Point,
    PointName,
    Position,
    PredictedClass,
    Raw,
    Reduction,
    Row,
    Superpixels,
    Target,
    TokenId,
)
from cutaway.contract.requests.fields import field_advice, place, plain, suggestion
from cutaway.contract.tensors import COMPRESSIONS, FLOATING, ArrayLike, holds_texts
from cutaway.contract.values import brief, changed, near_names
from cutaway.contract.wire.codec import OneOf, convert_each, type_hints
from cutaway.contract.wire.methods import ATTACKS, METHODS, METRICS, RULES
from cutaway.contract.wire.oneofs import EDIT_KINDS, REDUCTIONS, TARGETS

# Readers of single values: numbers, texts, choices and arrays.

E = TypeVar("E", bound=Enum)
T = TypeVar("T")


def wrong_type(expected: str, value: Any) -> CutawayError:
    """Returns the error for a ``value`` that is not what its field takes."""
    return error(Reason.INVALID_VALUE, f"must be {expected}, not {brief(value)}")


def mapping(value: Any) -> Mapping[Any, Any]:
    """Returns ``value`` if it is a mapping."""
    if not isinstance(value, Mapping):
        raise wrong_type("a mapping of names to values", value)
    return value


def is_list(value: Any) -> bool:
    """Returns whether ``value`` is a list, a tuple, a range or an array, and not a single value."""
    return isinstance(value, (list, tuple, range)) or getattr(value, "ndim", 0) > 0


def sequence(value: Any) -> list[Any]:
    """Returns the elements of a list; a text is none."""
    if not is_list(value):
        example = "" if isinstance(value, Mapping) else f", such as [{brief(value)}]"
        raise wrong_type(f"a list{example}", value)
    return list(value)


def map_values(function: Callable[[Any], Any], values: Mapping[Any, Any]) -> dict[str, Any]:
    """Applies ``function`` to each value of a mapping; an error names the value's key."""
    results = {}
    for name, value in values.items():
        with at(str(name)):
            results[str(name)] = function(value)
    return results


def _by_name(function: Callable[[Any], Any], value: Any) -> dict[str, Any]:
    """Reads a mapping; the error for a value alone, which could be one in it, shows how to name it."""
    if isinstance(value, Mapping):
        return map_values(function, value)
    for own in (value, [value]):
        with suppress(CutawayError):
            function(own)
            break
    else:
        raise wrong_type("a mapping of names to values", value)
    raise wrong_type(f"by name, such as {{x: {brief(own)}}}", value)


def choice(known: Mapping[str, T], value: object) -> T:
    """Returns the value in ``known`` of the name ``value``; capitals and underscores do not matter."""
    spellings = {plain(name): own for name, own in known.items()}
    if plain(value) not in spellings:
        raise error(Reason.INVALID_VALUE, f"{brief(value)} is not a choice; {suggestion(plain(value), known)}")
    return spellings[plain(value)]


def member(kind: type[E], value: Any) -> E:
    """Reads a member of ``kind`` by its value or its name."""
    for own in kind:
        if plain(value) == plain(own.name):
            return own
    value = "off" if value is False else value  # which is what YAML makes of a bare off
    return choice({str(own.value): own for own in kind}, value)


def data_type(value: Any, known: Iterable[str] = FLOATING) -> str:
    """Reads the name of a data type, such as ``float16``; numpy's and torch's own objects have it too."""
    return choice({name: name for name in known}, getattr(value, "__name__", str(value)).rpartition(".")[2])


def _boolean(value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise wrong_type("true or false", value)
    return bool(value)


def _integer(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise wrong_type("a whole number", value)
    return index(value)


def _number(value: Any, expected: str = "a number") -> float:
    """Reads a number, also from a text: YAML reads ``1e-3`` as one."""
    try:
        if not isinstance(value, bool):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise wrong_type(expected, value)


def _text(value: Any) -> str:
    if hasattr(value, "named_modules"):
        raise wrong_type("the name of a module, as model.named_modules() has it", value)
    if not isinstance(value, str):
        raise wrong_type("a text; put it in quotes", value)
    return value


def _array(value: Any) -> ArrayLike:
    """Reads lists of numbers; arrays of numpy and torch stay as they are."""
    if hasattr(value, "__array__"):
        return value
    try:
        array = np.asarray(None if holds_texts(value) else value)
    except (ValueError, OverflowError):  # lists of different lengths; 1e400 beside a whole number of 400 digits
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise wrong_type("a .npy file or lists of numbers", value)
    return array


def _number_or_array(value: Any, expected: str = "a number, a .npy file or lists of numbers") -> float | ArrayLike:
    is_array = isinstance(value, (list, tuple)) or (hasattr(value, "__array__") and not isinstance(value, np.generic))
    return _array(value) if is_array else _number(value, expected)


def _baseline(value: Any) -> float | ArrayLike | TokenId:
    """Returns the baseline of one input: a number, an array, or a token id such as ``{token_id: 0}``."""
    if isinstance(value, Mapping) and {"token_id"} <= {*value} <= {"token_id", "keep_special"}:
        read_values = map_values(lambda given: given if isinstance(given, bool) else _integer(given), value)
        return TokenId(read_values["token_id"], read_values.get("keep_special", False))
    if isinstance(value, TokenId):
        return value
    return _number_or_array(value, "a number, a .npy file, lists of numbers or {token_id: 0}")


def _by_input(read_one: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    """Returns a reader of values by input name. One without a name is that of the only input; a baseline or superpixels
    are of every input."""
    return lambda value: map_values(read_one, value) if isinstance(value, Mapping) else {"": read_one(value)}


def _mask(value: Any) -> ArrayLike | Superpixels:
    return _read_part(Superpixels, value) if isinstance(value, (Superpixels, Mapping)) else _array(value)


def _sizes(value: Any) -> tuple[int, ...]:
    return tuple(convert_each(_integer, sequence(value)))


def _point(value: Any) -> Point:
    return member(Point, value)


def _points(value: Any) -> Point | tuple[Point, ...]:
    return tuple(convert_each(_point, value)) if isinstance(value, (list, tuple)) else _point(value)


def _argument(value: Any) -> Argument:
    value = value.item() if hasattr(value, "item") and not getattr(value, "ndim", 0) else value  # of numpy or torch
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise wrong_type("true, false, a number, a text or null; an array is an input", value)
    return value


def _examples(value: Any) -> ConceptExamples:
    """Reads examples: an array, arrays by input name, texts, or the name of a data set."""
    if isinstance(value, ConceptExamples):
        return value
    if isinstance(value, Mapping) and {*value} == {"data_set"} and isinstance(value["data_set"], str):
        return ConceptExamples(data_set=value["data_set"])
    several = value if isinstance(value, (list, tuple)) else [value]
    raw = [Raw(each.encode(), "text/plain") if isinstance(each, str) else each for each in several]
    if raw and all(isinstance(each, Raw) for each in raw):
        return ConceptExamples(raw=tuple(raw))
    return ConceptExamples(map_values(_array, value) if isinstance(value, Mapping) else {"": _array(value)})


def _position(value: Any) -> Position:
    """Reads a token: a text is its text, also one of digits."""
    if value == "":
        raise error(Reason.INVALID_VALUE, "the text of a token has at least one character")
    return value if isinstance(value, str) else _integer(value)


def _positions(value: Any) -> Position | tuple[Position, ...]:
    if not is_list(value):
        return _position(value)
    if not len(value):
        raise error(Reason.INVALID_VALUE, "name at least one token")
    return tuple(convert_each(_position, value))


def _or_none(read_value: Callable[[Any], T]) -> Callable[[Any], T | None]:
    return lambda value: None if value is None else read_value(value)


def _row_or_array(value: Any) -> Row | ArrayLike:
    return _read_part(Row, value) if isinstance(value, (Row, Mapping)) else _array(value)


READERS: Mapping[Any, Callable[[Any], Any]] = {
    Argument: _argument,
    bool: _boolean,
    int: _integer,
    float: _number,
    str: _text,
    FloatingType: lambda value: value and data_type(value),
    Compression: lambda value: value and choice({name: name for name in COMPRESSIONS}, value),
    ArrayLike: _array,
    float | ArrayLike: _number_or_array,
    str | ArrayLike: lambda value: value if isinstance(value, str) else _array(value),
    Row | ArrayLike | None: _or_none(_row_or_array),
    Position | None: _or_none(_position),
    Position | tuple[Position, ...] | None: _or_none(_positions),
    Baselines: _by_input(_baseline),
    ConceptExamples: _examples,
    Distributions: _by_input(_array),
    Masks: _by_input(_mask),
    AxisSizes: _by_input(_sizes),
    PointName | Point: _point,
    PointName | Point | tuple[PointName | Point, ...]: _points,
}
"""How a value is read, by the type of its field. Each raises ``INVALID_VALUE`` for a value of another type."""


_TABLES: dict[Any, tuple[str, OneOf[Any]]] = {
    Attribution: ("method", METHODS),
    Attack: ("attack", ATTACKS),
    Edit: ("edit", EDIT_KINDS),
    Target: ("target", TARGETS),
    Reduction: ("reduction", REDUCTIONS),
    LrpRule: ("rule", RULES),
    Metric: ("metric", METRICS),
}
"""The noun for the classes of each base class in messages, and the table of these classes."""

CLASSES: dict[Any, dict[str, type]] = {base: dict(sorted(table.kinds.items())) for base, (_, table) in _TABLES.items()}
"""The classes of each base class that a request can name, by their names in the contract."""

_SPELLINGS: dict[Any, dict[str, type]] = {
    base: {plain(alias): kind for field, kind in classes.items() for alias in (field, kind.__name__)}
    for base, classes in CLASSES.items()
}
_SPELLINGS[Target]["predicted"] = PredictedClass


def read_request(value: Any) -> InspectRequest:
    """Reads a request without its model and its inputs.

    Args:
        value: a mapping of the other fields of `InspectRequest`; None stands for a field's default. ``check`` may be
            the mode alone, with ``relative_tolerance`` beside it; ``input_gradients`` may be true or false;
            ``predictions`` is the opposite of ``omit_predictions``.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, with the field at fault.
    """
    values = {str(name): given for name, given in mapping(value).items() if given is not None}
    if isinstance(values.get("input_gradients"), bool):
        values["input_gradients"] = [] if values["input_gradients"] else None
    if "relative_tolerance" in values:
        tolerance = values.pop("relative_tolerance")
        values["check"] = {"mode": values.get("check", "same_pass"), "relative_tolerance": tolerance}
    if "predictions" in values:
        with at("predictions"):
            values["omit_predictions"] = not read(bool, values.pop("predictions"))
    return InspectRequest(model="", **_arguments(InspectRequest, values, excluded=("model", *INPUT_FIELDS)))


def read(kind: type[T], value: Any) -> T:
    """Reads one part of a request, such as an `Attribution`, a `Target` or a `Capture`.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, with the field at fault.
    """
    result: T = _reader(cast("Any", kind))(value)
    return result


@cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """Returns the function that reads a value for a field whose type annotation is ``hint``."""
    if hint in READERS:
        return READERS[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _reader(arguments[0])
    if origin in (Union, types.UnionType):  # X | None
        return _or_none(_reader(arguments[0]))
    if origin is tuple:
        element = _reader(arguments[0])
        return lambda value: tuple(convert_each(element, sequence(value)))
    if origin is Mapping:
        named = _reader(arguments[1])
        return partial(_by_name, named)
    return partial(member if issubclass(origin or hint, Enum) else _read_part, hint)  # an array has an origin


def _read_part(kind: Any, value: Any) -> Any:
    """Returns an object of the class ``kind``, read from an object, a mapping, or a text such as ``fc@input``."""
    if isinstance(value, kind):
        return changed(value, **_read_fields(type(value), vars(value)))
    if isinstance(value, type):
        raise error(Reason.INVALID_VALUE, f"{value.__name__} is a class; send {value.__name__}(...)")
    if kind in (Attack, Attribution, Edit):
        return _read_tagged(kind, value)
    if kind in CLASSES:
        return _read_named(kind, value)
    return kind(**_arguments(kind, place(value) if kind is Capture and isinstance(value, str) else value))


def _read_tagged(base: Any, value: Any) -> Any:
    """Reads a method or an edit, which has its name beside its fields: ``{edit: scale, module: fc, factor: 2}``. Its
    place may follow the name: ``layer_grad_cam:conv2``, ``zero:fc@grad_output``."""
    noun, _ = _TABLES[base]
    if not isinstance(value, (str, Mapping)):
        part = _PARTS.get(type(value).__name__) or (_PARTS["Metric"] if isinstance(value, Metric) else "")
        raise wrong_type(f"the {noun}'s name, or a mapping with the field {noun!r}{part}", value)
    values = {noun: value} if isinstance(value, str) else dict(value)
    name, _, where = str(values.pop(noun, "")).partition(":")
    with at(noun):
        kind = _find_class(base, name)
    if where:
        values = {**({"layer": where} if base is Attribution else place(where)), **values}
    return kind(**_arguments(kind, values))


_PARTS = {
    "NoiseTunnel": "; a noise tunnel is a part of one: Saliency(noise=NoiseTunnel())",
    "Metric": "; a metric is a part of one: Saliency(metrics=(Infidelity(),))",
}


def _read_named(base: Any, value: Any) -> Any:
    """Reads an object that has its name around its fields: ``{gamma: {gamma: 0.5}}``, or ``gamma`` without fields."""
    value = _named_target(value) if base is Target else value
    if isinstance(value, str):
        value = {value: {}}
    if not isinstance(value, Mapping) or len(value) != 1:
        noun = _TABLES[base][0]
        raise wrong_type(f"one {noun} by its name, which is one of {', '.join(CLASSES[base])}", value)
    ((name, value),) = value.items()
    kind = _find_class(base, name)
    with at(str(name)):
        return kind(**_arguments(kind, {} if value is None else value))


def _named_target(value: Any) -> Any:
    """Returns a target with its name. Whole numbers are class indices, and texts labels, unless one is, or nearly is,
    the name of a target."""
    value = value.tolist() if hasattr(value, "tolist") else value  # of numpy or torch
    if isinstance(value, Mapping) or (isinstance(value, str) and _may_name_target(value)):
        return value
    several = list(value) if isinstance(value, (list, tuple, range)) else [value]
    several = [element.item() if hasattr(element, "item") else element for element in several]
    if several and all(isinstance(element, str) for element in several):
        return {"class_label": several}
    if all(isinstance(element, int) and not isinstance(element, bool) for element in several):
        return {"class_index": several}
    remedy = f"send a class index or label, one for each example, or a target: {', '.join(CLASSES[Target])}"
    raise error(Reason.INVALID_VALUE, f"{brief(value)} is no target; {remedy}")


def _may_name_target(text: str) -> bool:
    """Returns whether ``text`` is a target or a typo of one, and no label: tokens of text begin with a space."""
    return text == text.strip() and bool(near_names(plain(text), _SPELLINGS[Target], n=1, cutoff=0.8))


def _find_class(base: Any, name: Any) -> Any:
    """Returns the class of that name in the contract or in Python; capitals and underscores do not matter."""
    if plain(name) not in _SPELLINGS[base]:
        problem = f"there is no {_TABLES[base][0]} {name!r:.80}" if name else "is missing"
        as_label = f" A class of that name is {{class_label: {name!r:.80}}}." if base is Target else ""
        raise error(Reason.INVALID_VALUE, f"{problem}; {suggestion(str(name), CLASSES[base])}{as_label}")
    return _SPELLINGS[base][plain(name)]


def _one_or_several(reader: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a reader of lists that takes a single element for a list of one."""
    return lambda value: reader(value if value is None or is_list(value) else [value])


@cache
def _field_readers(kind: Any, excluded: tuple[str, ...] = ()) -> dict[str, tuple[Field[Any], Callable[[Any], Any]]]:
    """Returns the fields of a dataclass by name, each with the function that reads the field's value."""
    hints, readers = type_hints(kind), {}
    for field in fields(kind):
        if field.name not in excluded:
            hint = hints[field.name]
            kinds = get_args(hint) if get_origin(hint) in (Annotated, Union, types.UnionType) else (hint,)
            takes_one = hint not in READERS and any(get_origin(part) is tuple for part in kinds)
            readers[field.name] = (field, _one_or_several(_reader(hint)) if takes_one else _reader(hint))
    return readers


@cache
def _needed_fields(kind: Any, excluded: tuple[str, ...]) -> list[str]:
    """Returns the fields of a dataclass that have no default."""
    known = _field_readers(kind, excluded)
    return [name for name, (field, _) in known.items() if field.default is field.default_factory is MISSING]


def _read_fields(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the given values, each converted by its field's reader. Skips values that are the default."""
    results = {}
    for name, (field, reader) in _field_readers(kind).items():
        given = values.get(name, field.default)
        if given is not field.default:
            with at(name):
                results[name] = reader(given)
    return results


def _arguments(kind: Any, value: Any, excluded: tuple[str, ...] = ()) -> dict[str, Any]:
    """Reads the arguments of a dataclass.

    Args:
        kind: the dataclass. Its field ``module`` may also be called ``layer``, as in methods.
        value: a mapping of field names to values; or the value of the first field that is no keyword-only one.
        excluded: fields that the mapping must not have.
    """
    known, needed = _field_readers(kind, excluded), _needed_fields(kind, excluded)
    if not isinstance(value, Mapping):
        positional = [name for name, (field, _) in known.items() if not field.kw_only]
        may_be_name = isinstance(value, str) or hasattr(value, "named_modules")
        if positional and known[positional[0]][1] is _text and not may_be_name:
            raise wrong_type(f"{kind.__name__}({', '.join(f'{name}=...' for name in positional[:2])})", value)
        value = {positional[0]: value} if positional else value
    values = {str(name): given for name, given in mapping(value).items()}
    if "layer" in values and "module" in known and "module" not in values:
        values["module"] = values.pop("layer")
    for name in values:
        if name not in known:
            raise error(Reason.INVALID_VALUE, f"{kind.__name__} has no such field; {field_advice(name, known)}", name)
    for name in needed:
        if name not in values:
            example = ", ".join(f"{key}=..." for key in needed)
            raise error(Reason.INVALID_VALUE, f"{kind.__name__} needs this field: {kind.__name__}({example})", name)
    return _read_fields(kind, values)
