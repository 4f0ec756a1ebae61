"""Where captures and edits are: a module or an operator, ``layer3.1`` or ``layer3.1:relu#0``, and points at it."""

from __future__ import annotations

import typer

from cutaway.cli.choices import offer
from cutaway.cli.words import Key, keys, only
from cutaway.requests import Capture, Edit, Point
from cutaway.tensors import DTYPES

WHERE = ("module", "op", "parameter", "at")
"""The fields that say where; they are no keys."""

_SHORT = {"slices": "slice", "data_type": "dtype"}
_FLOATING = [name for name in DTYPES if "float" in name]


def place(text: str, word: str) -> dict[str, str]:
    """The field that ``text`` is for, and ``text``; the address of an operator has a colon, a module's name has none.

    Raises:
        BadParameter: ``word`` has nothing there.
    """
    if not text:
        raise typer.BadParameter(f"{word!r} names no module and no operator")
    return {"op" if ":" in text else "module": text}


def point(name: str) -> Point:
    """The point of that name.

    Raises:
        BadParameter: there is none.
    """
    known = [each.value for each in Point]
    if name not in known:
        raise typer.BadParameter(f"no point {name!r}; {offer(name, known)}")
    return Point(name)


def place_keys(kind: type[Capture] | type[Edit], *left_out: str) -> dict[str, Key]:
    """The keys of ``kind``, by the short names that they have when typed."""
    known = {_SHORT.get(name, name): key for name, key in keys(kind, (*WHERE, *left_out)).items()}
    if "dtype" in known:
        known["dtype"] = Key("data_type", only(_floating))
    return known


def _floating(name: str) -> str:
    if name not in _FLOATING:
        raise ValueError(f"no {name!r}; {offer(name, _FLOATING)}")
    return name
