"""Things that run in turn, round by round: what disturbs the machine disturbs them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median, quantiles
from typing import NamedTuple, TypeAlias

Measure: TypeAlias = Callable[[], float]
"""Runs something once, and says how long it took, or how often it ran a second."""


class Ratio(NamedTuple):
    """How many times as long as the base something took: the median over the rounds, and their middle half.

    Attributes:
        middle: the median.
        low: a quarter of the rounds lie below.
        high: a quarter of the rounds lie above.
    """

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.low:.2f}-{self.high:.2f})"


def in_turn(candidates: Mapping[str, Measure], rounds: int) -> dict[str, list[float]]:
    """What each of ``candidates`` measures, a value a round; another one begins each round."""
    for run in candidates.values():
        run()  # whatever is made once is made now
    found: dict[str, list[float]] = {name: [] for name in candidates}
    order = list(candidates.items())
    for number in range(rounds):
        first = number % len(order)
        for name, run in order[first:] + order[:first]:
            found[name].append(run())
    return found


def ratios(base: Measure, candidates: Mapping[str, Measure], rounds: int) -> dict[str, Ratio]:
    """How long each of ``candidates`` takes beside ``base``, each ratio of two runs of the same round."""
    found = in_turn({"": base, **candidates}, rounds)
    return {
        name: Ratio(*_quartiles([one / alone for one, alone in zip(found[name], found[""])])) for name in candidates
    }


def _quartiles(each: list[float]) -> tuple[float, float, float]:
    low, _, high = quantiles(each, n=4) if len(each) > 1 else (each[0], each[0], each[0])
    return median(each), low, high
