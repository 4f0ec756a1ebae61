"""Short forms of parts of a request, such as ``LayerGradCam:conv2,relu=true``.

A short form becomes the mapping that a file would hold: what stands behind ``=`` is YAML, and `cutaway.request_reader`
reads the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import typer
import yaml

from cutaway.errors import CutawayError
from cutaway.request_reader.files import load_arrays
from cutaway.request_reader.reader import read
from cutaway.requests import Attribution, Capture, ClassIndex, ClassLabel, Edit, ExplainIf, Target

T = TypeVar("T")


def attribution(text: str) -> Attribution:
    """Reads ``METHOD[:LAYER][,KEY=VALUE...]``."""
    head, *pairs = _split(text)
    method, _, layer = head.partition(":")
    return _read(Attribution, {"method": method, **({"layer": layer} if layer else {}), **_fields(pairs)})


def capture(text: str) -> Capture:
    """Reads ``WHERE[@POINT,...][,KEY=VALUE...]``."""
    head, *pairs = _split(text)
    return _read(Capture, {**_place(head), **_fields(pairs)})


def edit(text: str) -> Edit:
    """Reads ``EDIT:WHERE[@POINT][,KEY=VALUE...]``."""
    head, *pairs = _split(text)
    name, _, where = head.partition(":")
    return _read(Edit, {"edit": name, **_place(where), **_fields(pairs)})


def target(classes: Sequence[str]) -> Target:
    """Reads classes, each an index or a label; one for all examples, or one an example."""
    if all(re.fullmatch(r"-?\d+", each) for each in classes):
        return ClassIndex(tuple(map(int, classes)))
    return ClassLabel(tuple(classes))


def explain_if(text: str) -> ExplainIf:
    """Reads ``KEY=VALUE[,KEY=VALUE...]``."""
    return _read(ExplainIf, _fields(_split(text)))


def pair(text: str) -> tuple[str, str]:
    """Splits ``KEY=VALUE``."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise typer.BadParameter(f"{text!r} is not KEY=VALUE")
    return key, value


def _split(text: str) -> list[str]:
    """Splits ``text`` before each ``,KEY=``; other commas belong to a value."""
    return re.split(r",(?=[\w.]+=)", text)


def _fields(pairs: Iterable[str]) -> dict[str, Any]:
    """Returns the field of each ``KEY=VALUE``; ``baselines.image=0.5`` is one element of a mapping."""
    fields: dict[str, Any] = {}
    for key, value in map(pair, pairs):
        name, dot, element = key.partition(".")
        try:
            loaded = yaml.safe_load(value)
        except yaml.YAMLError as failure:
            raise typer.BadParameter(f"{key}: {value!r} is not YAML: {' '.join(str(failure).split())}") from None
        if dot:
            fields.setdefault(name, {})[element] = loaded
        else:
            fields[name] = loaded
    return fields


def _place(text: str) -> dict[str, Any]:
    """Returns the fields for ``WHERE[@POINT,...]``; only the address of an operator has a colon."""
    where, at, points = text.partition("@")
    place: dict[str, Any] = {"op" if ":" in where else "module": where}
    if at:
        place["at"] = points.split(",") if "," in points else points
    return place


def _read(kind: type[T], fields: dict[str, Any]) -> T:
    try:
        return read(kind, load_arrays(fields, Path()))
    except CutawayError as failure:
        raise usage_error(failure) from None


def usage_error(failure: CutawayError) -> typer.BadParameter:
    """Returns ``failure`` as an error in the command line, which typer prints with the option's name."""
    return typer.BadParameter(f"{failure.field}: {failure.message}" if failure.field else failure.message)
