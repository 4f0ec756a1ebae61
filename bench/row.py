"""One row of the benchmark table: definition, bound and result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

from bench.servers import Store


@dataclass(frozen=True)
class Found:
    """The measurements of a row.

    Attributes:
        rounds: one value per round; the median is reported.
        aside: further medians by name, with unit.
    """

    rounds: Sequence[float]
    aside: Mapping[str, str] = field(default_factory=dict)

    @property
    def middle(self) -> float:
        """The median of the rounds."""
        return median(self.rounds)

    @property
    def half(self) -> tuple[float, float]:
        """The lower and upper quartile of the rounds."""
        if len(self.rounds) == 1:
            return self.rounds[0], self.rounds[0]
        low, _, high = quantiles(self.rounds, n=4)
        return low, high


@dataclass(frozen=True)
class Bench:
    """The arguments of a row's measurement.

    Attributes:
        store: the model store.
        rounds: number of interleaved rounds.
        device: ``cpu`` or ``cuda``, for in-process measurements.
    """

    store: Store
    rounds: int
    device: str

    def scratch(self, name: str) -> Path:
        """Returns a new directory for the row."""
        return self.store.directory / "peers" / name


@dataclass(frozen=True)
class Row:
    """The definition of a row.

    Attributes:
        name: value for ``--only``.
        what: description of the ratio.
        least: whether the bound is a minimum (True) or a maximum (False).
        bound: the bound; 0 if the row is only reported.
        measure: the function that measures.
        unit: unit of the value; empty for a ratio.
        device: ``cuda`` rows run only if a GPU is present.
    """

    name: str
    what: str
    least: bool
    bound: float
    measure: Callable[[Bench], Found]
    unit: str = ""
    device: str = "cpu"

    def kept(self, found: Found) -> bool:
        """Whether the bound is met."""
        return found.middle >= self.bound if self.least else found.middle <= self.bound

    def limit(self) -> str:
        """The bound as text."""
        if not self.bound:
            return "none"
        return f"{'≥' if self.least else '≤'} {self.bound:g}{self.unit and f' {self.unit}'}"


@dataclass(frozen=True)
class Outcome:
    """A row and its result.

    Attributes:
        row: the row.
        found: the measurements; None if the row could not run.
        why: why it could not run.
        seconds: duration of the measurement.
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
        """The median and the quartiles as text."""
        if self.found is None:
            return self.why
        low, high = self.found.half
        return f"{self.found.middle:.2f} ({low:.2f}–{high:.2f}){self.row.unit and f' {self.row.unit}'}"
