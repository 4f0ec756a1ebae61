"""What a person types for a capture, an attribution or an option, read into what it stands for.

Methods, their parameters and their types come from the dataclasses in `cutaway.requests`: what is added there can
be asked for here.
"""

from __future__ import annotations

import textwrap
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from enum import Enum
from typing import Any, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

import typer

from cutaway.requests import Attribution, Capture, ClassIndex, Point, Target

Reader: TypeAlias = Callable[[str], Any]


class Pair(NamedTuple):
    """``key=value``."""

    key: str
    value: str


def pair(word: str) -> Pair:
    """``key=value``."""
    key, equals, value = word.partition("=")
    if not (key and equals):
        raise typer.BadParameter(f"{word!r} is not key=value")
    return Pair(key, value)


def capture(word: str) -> Capture:
    """``conv*`` or ``conv*@output,grad_output``."""
    module, _, points = word.partition("@")
    if not module:
        raise typer.BadParameter(f"{word!r} names no module")
    return Capture(module, tuple(_point(name) for name in points.split(",")) if points else Point.OUTPUT)


def _point(name: str) -> Point:
    known = [point.value for point in Point]
    if name not in known:
        raise typer.BadParameter(f"no point {name!r}; {_offer(name, known)}")
    return Point(name)


# Attributions


def _methods(kind: type[Attribution]) -> Iterable[type[Attribution]]:
    narrower = kind.__subclasses__()
    if not narrower:
        yield kind
    for each in narrower:
        yield from _methods(each)


METHODS: dict[str, type[Attribution]] = dict(sorted((kind.__name__, kind) for kind in _methods(Attribution)))
"""Every method, by its name."""


def attribution(word: str) -> Attribution:
    """``Saliency``, ``IntegratedGradients,n_steps=100`` or ``LayerGradCam:conv2,relu=true``."""
    head, *rest = word.split(",")
    name, _, layer = head.partition(":")
    kind = _method(name)
    return _built(kind, [*([Pair("layer", layer)] if layer else []), *map(pair, rest)])


def _method(name: str) -> type[Attribution]:
    spelled = {known.lower(): known for known in METHODS}
    if name.lower() not in spelled:
        near = [spelled[each] for each in get_close_matches(name.lower(), spelled, n=1, cutoff=0.5)]
        raise typer.BadParameter(f"no method {name!r}; {_choice(near, METHODS)}")
    return METHODS[spelled[name.lower()]]


def _built(kind: type[Attribution], pairs: list[Pair]) -> Attribution:
    hints = readable(kind)
    given: dict[str, list[tuple[str, str]]] = {}
    for key, text in pairs:
        parameter, _, part = key.partition(".")
        if parameter not in hints:
            raise typer.BadParameter(f"{kind.__name__} has no {parameter!r}; {_offer(parameter, hints)}")
        given.setdefault(parameter, []).append((part, text))
    for field in fields(kind):
        if _required(field) and field.name not in given:
            raise typer.BadParameter(f"{kind.__name__} needs {field.name}: {usage(kind).strip()}")
    return kind(**{name: _value(name, hints[name], words) for name, words in given.items()})


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def readable(kind: type[Attribution]) -> dict[str, Any]:
    """The parameters of ``kind`` that can be typed, with their types."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if _reader(_element(hints[field.name]))}


def usage(kind: type[Attribution]) -> str:
    """How to ask for ``kind``, with its own parameters and their defaults, for a terminal of 80 columns."""
    common = {field.name for field in fields(Attribution)}
    hints = readable(kind)
    own = [field for field in fields(kind) if field.name in hints and field.name not in common]
    layer = ":LAYER" if any(field.name == "layer" for field in own) else ""
    parameters = " ".join(_default(field, hints[field.name]) for field in own if field.name != "layer")
    line = f"{kind.__name__}{layer} {parameters}"
    return textwrap.fill(line, 78, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)


def _default(field: Field[Any], hint: Any) -> str:
    if _is_mapping(hint):
        return f"{field.name}.INPUT=..."
    value = field.default.value if isinstance(field.default, Enum) else field.default
    return f"{field.name}={str(value).lower() if isinstance(value, (str, bool, int, float)) else '...'}"


# Types


def _value(name: str, hint: Any, words: list[tuple[str, str]]) -> Any:
    read = _reader(_element(hint))
    if read is None:  # readable() offers no such parameter
        raise TypeError(hint)
    try:
        values = [(part, read(text)) for part, text in words]
    except ValueError as failure:
        raise typer.BadParameter(f"{name}: {failure}") from None
    if get_origin(hint) is tuple:
        return tuple(value for _, value in values)
    return dict(values) if _is_mapping(hint) else values[-1][1]


def _element(hint: Any) -> Any:
    """What one typed word stands for: an element of a tuple, a value of a mapping, or the thing itself."""
    if get_origin(hint) is tuple:
        return get_args(hint)[0]
    return get_args(hint)[1] if _is_mapping(hint) else hint


def _is_mapping(hint: Any) -> bool:
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _reader(hint: Any) -> Reader | None:
    if get_origin(hint) in (Union, types.UnionType):
        return next((read for each in get_args(hint) if (read := _reader(each))), None)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda text: _member(hint, text)
    return _READERS.get(hint)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"true or false, not {text!r}")
    return text.lower() == "true"


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"a whole number, not {text!r}") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"a number, not {text!r}") from None


def _member(kind: type[Enum], text: str) -> Enum:
    known = {member.value: member for member in kind}
    if text not in known:
        raise ValueError(f"no {text!r}; {_offer(text, known)}")
    return known[text]


_READERS: dict[Any, Reader] = {
    bool: _truth,
    int: _whole,
    float: _number,
    str: str,
    Target: lambda text: ClassIndex((_whole(text),)),
}


def _offer(word: str, known: Iterable[str]) -> str:
    known = list(known)
    return _choice(get_close_matches(word, known, n=1), known)


def _choice(near: list[str], known: Iterable[str]) -> str:
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
