"""How what a person types becomes a dataclass of `cutaway.requests`.

Every such word is ``NAME:PART:PART,KEY=VALUE,...``. What may be typed, and what it is read as, comes from the
dataclasses' fields and their types: what is added there can be asked for here.
"""

from __future__ import annotations

import re
import textwrap
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import typer

from cutaway.cli.choices import found, named, offer
from cutaway.cli.values import READERS, WHOLES, Reader, member, wholes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

D = TypeVar("D", bound="DataclassInstance")
T = TypeVar("T")

Collector: TypeAlias = "Callable[[Sequence[Pair]], Any]"
"""What all that was typed for one field stands for together, each with what followed a dot in its key."""


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


def parted(word: str) -> list[str]:
    """What stands between the commas of ``word``; those inside of brackets, as in ``path=["a,b"]``, part nothing."""
    return re.split(r",(?![^\[\]]*\])", word)


# Keys, and the dataclasses that they make


class Key(NamedTuple):
    """What may be typed as ``KEY=VALUE``.

    Attributes:
        field: the dataclass' field that it is for.
        read: how it is read.
    """

    field: str
    read: Collector


def keys(kind: type[DataclassInstance], left_out: Collection[str] = ()) -> dict[str, Key]:
    """The fields of ``kind`` that can be typed, by their names."""
    hints = get_type_hints(kind)
    wanted = [field.name for field in fields(kind) if field.name not in left_out]
    return {name: Key(name, read) for name in wanted if (read := _together(hints[name]))}


def by_position(kind: type[DataclassInstance], text: str) -> list[Pair]:
    """The parts of ``text`` between colons, for the parameters that Python takes by position, too.

    An empty part leaves its parameter at its default: ``1::10`` is ``Slice(1, stop=10)``.

    Raises:
        ValueError: there is no such parameter.
    """
    names = positional(kind)
    if text and not names:
        raise ValueError(f"{kind.__name__} takes nothing behind a colon, not {text!r}")
    parts = text.split(":", max(0, len(names) - 1))
    return [Pair(name, part) for name, part in zip(names, parts) if part]


def positional(kind: type[DataclassInstance]) -> list[str]:
    """The names of the parameters that ``kind`` takes by position."""
    return [field.name for field in fields(kind) if not field.kw_only]


def built(kind: type[D], pairs: Iterable[Pair], known: Mapping[str, Key], help: str = "", **given: Any) -> D:
    """A ``kind`` of what is ``given`` and what was typed.

    Args:
        kind: a dataclass.
        pairs: as typed.
        known: which keys there are.
        help: how to ask for it, to be shown where something is missing.
        given: values of fields.

    Raises:
        BadParameter: a key is unknown, a value cannot be read, or one is missing or given twice.
    """
    typed: dict[str, list[Pair]] = {}
    for key, text in pairs:
        name, _, part = key.partition(".")
        if name not in known:
            raise typer.BadParameter(f"{kind.__name__} has no {name!r}; {offer(name, known)}")
        typed.setdefault(name, []).append(Pair(part, text))
    for name, words in typed.items():
        if known[name].field in given:
            raise typer.BadParameter(f"{name}: {known[name].field} is given already")
        try:
            given[known[name].field] = known[name].read(words)
        except ValueError as failure:
            raise typer.BadParameter(f"{name}: {failure}") from None
    if missing := [name for name in required(kind) if name not in given]:
        raise typer.BadParameter(f"{kind.__name__} needs {missing[0]}{help and f': {help.strip()}'}")
    return kind(**given)


def required(kind: type[DataclassInstance]) -> list[str]:
    """The names of the parameters of ``kind`` that have no default."""
    return [each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING]


def usage(head: str, kind: type[DataclassInstance], left_out: Collection[str]) -> str:
    """How to ask for ``kind``: ``head``, and its parameters with their defaults, for a terminal of 80 columns."""
    known, hints = keys(kind, left_out), get_type_hints(kind)
    parameters = [_default(field, hints[field.name]) for field in fields(kind) if field.name in known]
    line = " ".join([head, *parameters])
    return textwrap.fill(line, 78, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)


def _default(field: Field[Any], hint: Any) -> str:
    if _is_mapping(hint):
        return f"{field.name}.NAME=..."
    value = field.default.value if isinstance(field.default, Enum) else field.default
    return f"{field.name}={str(value).lower() if isinstance(value, (str, bool, int, float)) else '...'}"


def forms(kind: type[DataclassInstance], left_out: Collection[str] = ()) -> list[str]:
    """How to type those parameters of ``kind`` that are made of parts themselves, such as ``neuron=MODULE:INDEX``."""
    known, hints = keys(kind, left_out), get_type_hints(kind)
    heads = {name: f"{name}.NAME" if _is_mapping(hints[name]) else name for name in known}
    return [f"{head}={form}" for name, head in heads.items() for form in _forms(hints[name])]


def _forms(hint: Any) -> list[str]:
    if is_dataclass(hint) and isinstance(hint, type):
        if not hint.__subclasses__():
            return [by_colons(hint)]
        return [name + by_colons(each, ":") for name, each in short_names(hint).items()]
    return [form for each in get_args(hint) for form in _forms(each)]


def by_colons(kind: type[DataclassInstance], before: str = "") -> str:
    """What stands between colons for ``kind``, in brackets where it has a default.

    Args:
        kind: a dataclass.
        before: what the first of them stands behind.
    """
    needed, text = required(kind), ""
    for name in positional(kind):
        part = (":" if text else before) + name.upper()
        text += part if name in needed else f"[{part}]"
    return text


# Values, by their types


def _together(hint: Any) -> Collector | None:
    """How all that was typed for one field of type ``hint`` is read."""
    if _is_mapping(hint):
        read = reader(get_args(hint)[1])
        return read and (lambda words: {part: read(text) for part, text in words})
    if hint == WHOLES:
        return lambda words: tuple(number for text in _texts(words) for number in wholes(text))
    if get_origin(hint) is tuple:
        read = reader(get_args(hint)[0])
        return read and (lambda words: tuple(map(read, _texts(words))))
    read = reader(hint)
    return read and (lambda words: read(_only(words)))


def only(read: Reader) -> Collector:
    """How the one text that was typed for a field is read."""
    return lambda words: read(_only(words))


def _only(words: Sequence[Pair]) -> str:
    first, *others = _texts(words)
    if others:
        raise ValueError(f"given {len(words)} times")
    return first


def _texts(words: Sequence[Pair]) -> list[str]:
    if parts := [part for part, _ in words if part]:
        raise ValueError(f"it has no parts, such as {parts[0]!r}")
    return [text for _, text in words]


def _is_mapping(hint: Any) -> bool:
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def reader(hint: Any) -> Reader | None:
    """How one text is read as a ``hint``; None where that cannot be typed."""
    if hint in READERS:
        return READERS[hint]
    if get_origin(hint) in (Union, types.UnionType):
        return next((read for each in get_args(hint) if (read := reader(each))), None)
    if not isinstance(hint, type):
        return None
    if issubclass(hint, Enum):
        return lambda text: member(hint, text)
    if is_dataclass(hint):
        return lambda text: (_named if hint.__subclasses__() else _parts)(hint, text)
    return None


def _named(base: type[DataclassInstance], text: str) -> Any:
    """The kind of ``base`` whose name comes first, as in ``gamma:0.25``."""
    name, _, parts = text.partition(":")
    with _as_value_error():
        kind = found("kind", name, short_names(base), named(base))
    return _parts(kind, parts)


def _parts(kind: type[DataclassInstance], text: str) -> Any:
    with _as_value_error():
        return built(kind, by_position(kind, text), keys(kind))


@contextmanager
def _as_value_error() -> Iterator[None]:
    try:
        yield
    except typer.BadParameter as failure:
        raise ValueError(failure.message) from None


_SHORT = {"relevance_identity": "identity"}


def short_names(base: type[T]) -> dict[str, type[T]]:
    """The kinds of ``base``, by their shortest names."""
    return {_SHORT.get(name, name): kind for name, kind in named(base).items()}
