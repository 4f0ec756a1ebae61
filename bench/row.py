"""One row of the table: what is measured, what it must be, and what was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

from bench.servers import Store


@dataclass(frozen=True)
class Found:
    """What a row came to.

    Attributes:
        rounds: one value a round; their median counts.
        aside: what was measured on the way, by name, with its unit: the median of the rounds.
    """

    rounds: Sequence[float]
    aside: Mapping[str, str] = field(default_factory=dict)

    @property
    def middle(self) -> float:
        """The median."""
        return median(self.rounds)

    @property
    def half(self) -> tuple[float, float]:
        """Between which two the middle half of the rounds lies."""
        if len(self.rounds) == 1:
            return self.rounds[0], self.rounds[0]
        low, _, high = quantiles(self.rounds, n=4)
        return low, high


@dataclass(frozen=True)
class Bench:
    """What a row's measurement is given.

    Attributes:
        store: where models are.
        rounds: how often both sides are measured in turn.
        device: ``cpu`` or ``cuda``, for what runs in process.
    """

    store: Store
    rounds: int
    device: str

    def scratch(self, name: str) -> Path:
        """A directory that is the row's own."""
        return self.store.directory / "peers" / name


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        name: what ``--only`` takes.
        what: what is divided by what, in words.
        least: whether the bound is the least (True) or the most (False) that is kept.
        bound: the bound; 0 where there is none, and the row is only told.
        measure: does it.
        unit: of the value; empty for a ratio.
        device: where it runs; ``cuda`` rows run only where a GPU is.
    """

    name: str
    what: str
    least: bool
    bound: float
    measure: Callable[[Bench], Found]
    unit: str = ""
    device: str = "cpu"

    def kept(self, found: Found) -> bool:
        """Whether the bound is."""
        return found.middle >= self.bound if self.least else found.middle <= self.bound

    def limit(self) -> str:
        """The bound, for people."""
        if not self.bound:
            return "told"
        return f"{'≥' if self.least else '≤'} {self.bound:g}{self.unit and f' {self.unit}'}"


@dataclass(frozen=True)
class Outcome:
    """A row, and what became of it.

    Attributes:
        row: the row.
        found: what was measured; None where it could not run.
        why: then, why not.
        seconds: how long it took.
    """

    row: Row
    found: Found | None
    why: str
    seconds: float

    @property
    def verdict(self) -> str:
        """``kept``, ``FALLS SHORT`` or ``cannot run``."""
        if self.found is None:
            return "cannot run"
        return "kept" if self.row.kept(self.found) else "FALLS SHORT"

    @property
    def value(self) -> str:
        """The median and the middle half, for people."""
        if self.found is None:
            return self.why
        low, high = self.found.half
        return f"{self.found.middle:.2f} ({low:.2f}–{high:.2f}){self.row.unit and f' {self.row.unit}'}"
