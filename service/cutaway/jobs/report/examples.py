"""Rows worth a look, and what was found about one explanation; what the lists of a report are made of."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")


@dataclass(frozen=True)
class Example:
    """One row, as a list of rows shows it.

    Attributes:
        row: its number in the data set.
        id: what it is called.
        label: what it is said to be; None where nothing is said.
        prediction: what the model says; ``""`` for a model without classes.
        probability: how sure it is, 0 to 1; None for a model without classes.
        verdicts: by explanation; None where there is none.
    """

    row: int
    id: str
    label: str | None
    prediction: str
    probability: float | None
    verdicts: Mapping[str, str | None]


@dataclass
class Finding:
    """What a check found about one explanation of one row, or of several rows that were checked together.

    Attributes:
        example: the first of the rows.
        explanation: what its columns are called.
        verdict: the outcome.
        error: the largest relative error of all these rows.
        reason: why, where the two do not agree.
        last: the id of the last row.
        rows: how many there are.
    """

    example: Example
    explanation: str
    verdict: str
    error: float
    reason: str
    last: str = ""
    rows: int = 0


@dataclass
class Explanation:
    """What was found about one explanation over all rows.

    Attributes:
        name: what its columns are called.
        method: the contract's name of the method.
        layer: where it explains; ``""`` for the inputs.
        verdicts: how many rows have which.
        skipped: how many rows were left out on request.
        error: the largest relative error of any row that has a finite one.
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
        """The convergence deltas of all rows that have a finite one: 8 bytes a row."""
        whole: npt.NDArray[np.float64] = np.concatenate([np.empty(0), *self._deltas])
        finite: npt.NDArray[np.float64] = whole[np.isfinite(whole)]
        return finite

    def add(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Take in some rows of this explanation's columns, by their kind."""
        self.verdicts.update(verdict for verdict in columns.get("verdict", ()) if verdict is not None)
        self.skipped += sum(1 for skipped in columns.get("skipped", ()) if skipped)
        self.error = max(
            [self.error, *(error for error in columns.get("largest_error", ()) if error and np.isfinite(error))]
        )
        if "delta" in columns:
            self._deltas.append(np.array([delta for delta in columns["delta"] if delta is not None], np.float64))


class Best(Generic[T]):
    """The ``most`` values with the largest scores, of equal ones the first; a value is made only if it is kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen = 0
        self._heap: list[tuple[tuple[float, ...], int, T]] = []

    def add(self, score: tuple[float, ...], make: Callable[[], T]) -> None:
        """Keep what ``make`` makes, if ``score`` is among the largest."""
        self._seen += 1
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, (score, -self._seen, make()))
        elif score > self._heap[0][0]:
            heapq.heapreplace(self._heap, (score, -self._seen, make()))

    @property
    def values(self) -> list[T]:
        """What was kept, the largest score first."""
        return [value for *_, value in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]
