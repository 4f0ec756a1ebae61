"""What a person types for an edit: ``scale:conv1@grad_input,factor=0.5``."""

from __future__ import annotations

from dataclasses import fields

from cutaway.cli import words
from cutaway.cli.choices import found, named
from cutaway.cli.places import place, place_keys, point
from cutaway.requests import Edit

VERBS = named(Edit)
"""Every edit, by its verb."""


def edit(word: str) -> Edit:
    """``zero:layer3.1:relu#0`` or ``mix:conv2@output,weight=0.3,permutation=1+0``."""
    head, *rest = words.parted(word)
    verb, _, where = head.partition(":")
    kind = found("verb", verb, VERBS)
    module, _, at = where.partition("@")
    given = {**place(module, word), **({"at": point(at)} if at else {})}
    return words.built(kind, map(words.pair, rest), place_keys(kind), usage(kind), **given)


def usage(kind: type[Edit]) -> str:
    """How to ask for ``kind``, with its own parameters."""
    verb = next(verb for verb, each in VERBS.items() if each is kind)
    return words.usage(f"{verb}:WHERE", kind, [field.name for field in fields(Edit)])
