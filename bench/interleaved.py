"""Candidates that run in turn, round by round: what disturbs the machine disturbs them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median, quantiles
from typing import NamedTuple, TypeAlias

Seconds: TypeAlias = Callable[[], float]
"""Runs something once, and says how long it took."""


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


def ratios(base: Seconds, candidates: Mapping[str, Seconds], rounds: int) -> dict[str, Ratio]:
    """How long each of ``candidates`` takes beside ``base``, each ratio of two runs of the same round."""
    for run in (base, *candidates.values()):
        run()  # whatever is made once is made now
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds):
        order = list(candidates.items())
        turned = order[number % len(order) :] + order[: number % len(order)]
        alone = base()
        for name, run in turned:
            found[name].append(run() / alone)
    return {name: Ratio(median(each), *_quartiles(each)) for name, each in found.items()}


def _quartiles(each: list[float]) -> tuple[float, float]:
    low, _, high = quantiles(each, n=4) if len(each) > 1 else (each[0], each[0], each[0])
    return low, high
