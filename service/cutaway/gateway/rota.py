"""Whose turn it is, of several that answer the same calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol, TypeVar

from cutaway.results import ModelName


class Member(Protocol):
    """One of them.

    Attributes:
        under_way: how much it has to do for each model.
    """

    under_way: Counter[ModelName]


M = TypeVar("M", bound=Member)


def following(members: list[M], name: ModelName, able: Callable[[M], bool]) -> M | None:
    """Of those that are ``able``, one that has least to do for the model, and of these the one that has waited longest;
    None where none is. It becomes the last of ``members``."""
    found = [each for each in members if able(each)]
    if not found:
        return None
    chosen = min(found, key=lambda each: each.under_way[name])
    members.remove(chosen)
    members.append(chosen)
    return chosen
