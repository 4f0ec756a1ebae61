"""What a person types for a capture: ``conv*@output,grad_output,call=0,mean=2+3``."""

from __future__ import annotations

from itertools import takewhile

import typer

from cutaway.cli.choices import named
from cutaway.cli.places import place, place_keys, point
from cutaway.cli.words import Key, Pair, built, only, pair, parted, reader
from cutaway.requests import Capture, Point, Reduction

_SHORT = {"top_elements": "top"}


def _reductions() -> dict[str, Key]:
    """A key for each reduction: what it takes by position is the value, as in ``mean=2+3`` and ``top=5:1``."""
    read = {_SHORT.get(name, name): reader(kind) for name, kind in named(Reduction).items()}
    return {name: Key("reduce", only(each)) for name, each in read.items() if each}


KEYS = place_keys(Capture, "reduce") | _reductions()
"""What may follow a module or an operator."""

PARAMETER_KEYS = place_keys(Capture, "reduce", "call", "path") | _reductions()
"""What may follow a parameter."""


def capture(word: str) -> Capture:
    """``conv*``, ``conv*@output,grad_output`` or ``layer3.1:relu#0@output,call=0,mean=2+3``."""
    head, *rest = parted(word)
    where, _, first = head.partition("@")
    points = [first, *takewhile(lambda each: "=" not in each, rest)] if first else []
    pairs = map(_pair, rest[max(0, len(points) - 1) :])
    return built(Capture, pairs, KEYS, **place(where, word), at=tuple(map(point, points)) or Point.OUTPUT)


def _pair(word: str) -> Pair:
    if word in list(Point):
        raise typer.BadParameter(f"the point {word!r} belongs right behind the module: conv1@output,{word},KEY=VALUE")
    return pair(word)


def parameter(word: str) -> Capture:
    """``conv1.weight`` or ``conv1.weight,norm=1+2+3``: the target's gradient there."""
    name, *rest = parted(word)
    if not name or "@" in name:
        raise typer.BadParameter(f"{word!r} names no parameter, which has no points")
    return built(Capture, map(pair, rest), PARAMETER_KEYS, parameter=name)
