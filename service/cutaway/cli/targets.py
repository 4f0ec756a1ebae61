"""What a person types for a target: ``3``, ``top:5`` or ``neuron:conv2:3+1+1``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import typer

from cutaway.cli import words
from cutaway.cli.choices import found, named
from cutaway.requests import Target

_SHORT = {
    "class_index": "class",
    "mean_squared_error": "mse",
    "multi_index": "index",
    "output_norm": "norm",
    "output_sum": "sum",
    "predicted_class": "predicted",
    "top_k": "top",
}
_LONG = named(Target)

TARGETS = dict(sorted((_SHORT.get(name, name), kind) for name, kind in _LONG.items()))
"""Every target, by its shortest name."""


def target(word: str) -> Target:
    """``3``, ``cross_entropy:4``, ``norm:1`` or ``cotangent:v.npy,output=logits``."""
    head, *rest = words.parted(word)
    name, _, text = head.partition(":")
    if re.fullmatch(r"-?\d+", head):
        name, text = "class", head
    kind = found("target", name, TARGETS, _LONG)
    try:
        parts = words.by_position(kind, text)
    except ValueError as failure:
        raise typer.BadParameter(str(failure)) from None
    return words.built(kind, [*parts, *map(words.pair, rest)], words.keys(kind), usage(kind))


def together(targets: Sequence[Target]) -> Target | None:
    """One target of several, each of which is for one example; None of none.

    Raises:
        BadParameter: they differ in more than what an example may have of its own.
    """
    if len(targets) < 2:
        return targets[0] if targets else None
    first, *others = targets
    name = next(iter(words.positional(type(first))), "")
    if not isinstance(getattr(first, name, None), tuple) or any(type(other) is not type(first) for other in others):
        raise typer.BadParameter("several targets are of one kind, one for each example: --target 3 --target 5")
    joined: dict[str, Any] = {name: tuple(value for each in targets for value in getattr(each, name))}
    if any(replace(other, **joined) != replace(first, **joined) for other in others):
        raise typer.BadParameter("several targets differ in nothing but what each example has of its own")
    return replace(first, **joined)


def usage(kind: type[Target]) -> str:
    """How to ask for ``kind``: what stands between colons, in brackets where it has a default."""
    head = next(name for name, each in TARGETS.items() if each is kind)
    return f"  {head}{words.by_colons(kind, ':')}"
