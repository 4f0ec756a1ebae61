"""What a person types for which examples to explain: ``at_least=0.5,classes=3+5``."""

from __future__ import annotations

from cutaway.cli import words
from cutaway.requests import ExplainIf

_LONG = words.keys(ExplainIf)

KEYS = {name.removeprefix("probability_"): key for name, key in _LONG.items()}
"""Every bound, by its shortest name."""


def condition(word: str) -> ExplainIf:
    """``at_least=0.5,at_most=0.9,classes=3+5``; each bound once, by its short name or by Python's."""
    return words.built(ExplainIf, map(words.pair, words.parted(word)), {**KEYS, **_LONG})
