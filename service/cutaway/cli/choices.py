"""Things that are asked for by name, and what to offer where a name is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TypeVar

import typer

T = TypeVar("T")


def named(base: type[T]) -> dict[str, type[T]]:
    """The kinds of ``base``, by their names as they are typed: ``cross_entropy`` is `CrossEntropy`."""
    return {re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower(): kind for kind in kinds(base)}


def kinds(base: type[T]) -> list[type[T]]:
    """Every subclass of ``base`` that has none of its own, and that can be asked for: the engine has further ones."""
    narrower = [kind for kind in base.__subclasses__() if kind.__module__.startswith("cutaway.requests")]
    return [kind for each in narrower for kind in kinds(each)] if narrower else [base]


def found(what: str, name: str, known: Mapping[str, T], others: Mapping[str, T] | None = None) -> T:
    """What ``name`` stands for, however its capitals and underscores are set.

    Args:
        what: the word for what is sought.
        name: as typed.
        known: what there is, by name.
        others: further names, which are understood and not listed.

    Raises:
        BadParameter: there is no such ``what``.
    """
    names = {**(others or {}), **known}
    spelled = {_plain(each): each for each in names}
    if _plain(name) not in spelled:
        near = [spelled[each] for each in get_close_matches(_plain(name), spelled, n=1, cutoff=0.5)]
        raise typer.BadParameter(f"no {what} {name!r}; {_choice(near, known)}")
    return names[spelled[_plain(name)]]


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def offer(word: str, known: Iterable[str]) -> str:
    """What ``word`` may have been meant to be."""
    known = list(known)
    return _choice(get_close_matches(word, known, n=1), known)


def _choice(near: Sequence[str], known: Iterable[str]) -> str:
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
