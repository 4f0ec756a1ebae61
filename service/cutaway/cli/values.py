"""How one typed text is read as a value, by the value's type."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeAlias

import numpy as np

from cutaway.cli.choices import offer
from cutaway.requests import TokenId
from cutaway.tensors import Array

Reader: TypeAlias = Callable[[str], Any]
"""What a text stands for; where it stands for nothing, a ValueError says what would."""


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"true or false, not {text!r}")
    return text.lower() == "true"


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"a whole number, not {text!r}") from None


def wholes(text: str) -> tuple[int, ...]:
    """The numbers in ``2+3``."""
    return tuple(map(_whole, text.split("+")))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"a number, not {text!r}") from None


def _array(text: str) -> Array:
    if not text.lower().endswith(".npy"):
        raise ValueError(f"a .npy file, not {text!r}")
    try:
        loaded = np.load(text, allow_pickle=False)
    except (OSError, ValueError, EOFError) as failure:
        why = failure.strerror if isinstance(failure, OSError) and failure.strerror else failure
        raise ValueError(f"{text} cannot be read: {why}") from None
    if not isinstance(loaded, np.ndarray):
        raise ValueError(f"{text} holds no array")
    return loaded


def _number_or_array(text: str, wanted: str = "a number or a .npy file") -> float | Array:
    if text.lower().endswith(".npy"):
        return _array(text)
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{wanted}, not {text!r}") from None


def _baseline(text: str) -> float | Array | TokenId:
    kind, colon, number = text.partition(":")
    if kind.lower() == "token" and colon:
        return TokenId(_whole(number))
    return _number_or_array(text, "a number, a .npy file or token:ID")


def member(kind: type[Enum], text: str) -> Enum:
    """The member of ``kind`` with that value."""
    known = {member.value: member for member in kind}
    if text not in known:
        raise ValueError(f"no {text!r}; {offer(text, known)}")
    return known[text]


WHOLES = tuple[int, ...]
"""The type of what `wholes` reads."""

READERS: dict[Any, Reader] = {
    bool: _truth,
    int: _whole,
    float: _number,
    str: str,
    WHOLES: wholes,
    Any: _array,  # ArrayLike
    float | Any: _number_or_array,
    float | Any | TokenId: _baseline,
}
"""How a text is read, by the type hint of the field that it is for."""
