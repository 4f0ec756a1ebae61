"""What the overview of a report collects: rows to show, outcomes of checks, and counts for each attribution."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")

Class: TypeAlias = "int | None"
"""The index of a predicted class; None for a model without classes."""


@dataclass(frozen=True)
class Example:
    """One row in a list of rows.

    Attributes:
        row: its index in the data set.
        id: its id.
        label: its label; None if it has none.
        prediction: the name of the predicted class; ``""`` for a model without classes.
        probability: the probability of that class, 0 to 1; None for a model without classes.
        verdicts: the verdict of each attribution; None where the row was not explained.
    """

    row: int
    id: str
    label: str | None
    prediction: str
    probability: float | None
    verdicts: Mapping[str, str | None]


@dataclass
class Finding:
    """The outcome of a check for one row, or for successive rows with the same outcome.

    Attributes:
        example: the first row.
        attribution: the name of the attribution.
        verdict: the verdict.
        error: the largest relative error.
        reason: the reason of the verdict; ``""`` where both agree.
        last: the id of the last row.
        rows: the number of rows.
    """

    example: Example
    attribution: str
    verdict: str
    error: float
    reason: str
    last: str = ""
    rows: int = 0


@dataclass
class AttributionSummary:
    """The counts of one attribution over all rows.

    Attributes:
        name: the name of the attribution.
        method: the name of the method.
        layer: the explained layer; ``""`` for the inputs.
        verdicts: the number of rows with each verdict.
        skipped: the number of rows that ``explain_if`` left out.
        error: the largest finite relative error.
    """

    name: str
    method: str
    layer: str
    verdicts: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    error: float = 0.0
    _deltas: list[npt.NDArray[np.float64]] = field(default_factory=list)

    @property
    def deltas(self) -> npt.NDArray[np.float64]:
        """The finite convergence deltas of all rows."""
        deltas: npt.NDArray[np.float64] = np.concatenate([np.empty(0), *self._deltas])
        finite: npt.NDArray[np.float64] = deltas[np.isfinite(deltas)]
        return finite

    def add(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Adds rows of the attribution's columns, by the kind of the column."""
        self.verdicts.update(verdict for verdict in columns.get("verdict", ()) if verdict is not None)
        self.skipped += sum(1 for skipped in columns.get("skipped", ()) if skipped)
        errors = (error for error in columns.get("largest_error", ()) if error and np.isfinite(error))
        self.error = max([self.error, *errors])
        if "convergence_delta" in columns:
            deltas = [delta for delta in columns["convergence_delta"] if delta is not None]
            self._deltas.append(np.array(deltas, np.float64))


class Top(Generic[T]):
    """Keeps the ``count`` values with the largest scores; of equal scores, the first. Other values are not created."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._added = 0
        self._heap: list[tuple[tuple[float, ...], int, T]] = []

    def add(self, score: tuple[float, ...], create: Callable[[], T]) -> None:
        """Keeps the value that ``create`` returns, if ``score`` is among the largest."""
        self._added += 1
        if len(self._heap) < self._count:
            heapq.heappush(self._heap, (score, -self._added, create()))
        elif score > self._heap[0][0]:
            heapq.heapreplace(self._heap, (score, -self._added, create()))

    @property
    def values(self) -> list[T]:
        """The values, that with the largest score first."""
        return [value for *_, value in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]
