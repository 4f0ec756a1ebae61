"""Runs candidates alternately, round by round, so that noise of the machine affects all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median, quantiles
from typing import NamedTuple, TypeAlias

Measure: TypeAlias = Callable[[], float]
"""Runs a candidate once and returns its duration in seconds, or its rate per second."""


class Ratio(NamedTuple):
    """Duration relative to the base: median over the rounds, and their middle half.

    Attributes:
        middle: the median.
        low: lower quartile.
        high: upper quartile.
    """

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.low:.2f}-{self.high:.2f})"


def in_turn(candidates: Mapping[str, Measure], rounds: int) -> dict[str, list[float]]:
    """Returns the measurements of each candidate, one value per round; each round starts with another candidate."""
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
    """Returns the duration of each candidate relative to ``base``, from two runs of the same round."""
    found = in_turn({"": base, **candidates}, rounds)
    return {
        name: Ratio(*_quartiles([one / alone for one, alone in zip(found[name], found[""])])) for name in candidates
    }


def _quartiles(each: list[float]) -> tuple[float, float, float]:
    low, _, high = quantiles(each, n=4) if len(each) > 1 else (each[0], each[0], each[0])
    return median(each), low, high
