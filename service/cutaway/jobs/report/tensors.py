"""The second look at a job's results: means and statistics of tensors, and the tensors of the rows that are shown."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cutaway.jobs.records import is_ragged
from cutaway.jobs.report.results import Results
from cutaway.jobs.sources import Unreadable
from cutaway.jobs.sources.columns import from_arrow

Array: TypeAlias = "npt.NDArray[Any]"
Class: TypeAlias = "int | None"

_ROWS = 64


class Sums:
    """The mean of tensors of one shape."""

    def __init__(self) -> None:
        self.count = 0
        self._sum: Any = 0.0

    def add(self, values: Array) -> None:
        """Take in ``values`` [rows, ...]."""
        self.count += len(values)
        self._sum = self._sum + values.sum(axis=0, dtype=np.float64)

    @property
    def mean(self) -> Array:
        """The mean over all rows."""
        return np.asarray(self._sum / self.count)


class TokenSums:
    """Means of numbers by token."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, int] = defaultdict(int)

    def add(self, tokens: list[str], values: Array) -> None:
        """Take in the tokens of one text, and a number for each; but for its padding."""
        for token, value in without_padding(list(zip(tokens, values.tolist()))):
            self._sums[token] += value
            self._counts[token] += 1

    def means(self, least: int) -> list[tuple[str, float, int]]:
        """Each token that occurs ``least`` times or more, its mean and how often it occurs; the largest mean first."""
        kept = [(token, self._sums[token] / count, count) for token, count in self._counts.items() if count >= least]
        return sorted(kept, key=lambda entry: (-entry[1], entry[0]))


def without_padding(pairs: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Tokens of a text, each with what it adds, without the run of one token at the end that adds nothing at all."""
    end = len(pairs)
    while end and pairs[end - 1] == (pairs[-1][0], 0.0):
        end -= 1
    return pairs[:end] or pairs


class Activations:
    """What one place of the model held over all rows. A unit is a channel [C, H, W], or a feature of the last axis.

    Attributes:
        shape: of one example; empty where rows differ.
        elements: how many finite numbers there were.
        odd: how many were not finite.
        low, high: the smallest and the largest.
        zeros: how many were exactly 0.
    """

    def __init__(self) -> None:
        self.shape: tuple[int, ...] | None = None
        self.elements = self.odd = self.zeros = 0
        self.low, self.high = math.inf, -math.inf
        self._sum = self._squares = 0.0
        self._peaks: Array | None = None
        self._units = Sums()

    def add(self, values: Array) -> None:
        """Take in ``values`` [rows, ...]."""
        numbers = values.astype(np.float64)
        finite = np.isfinite(numbers)
        kept = numbers[finite]
        self.shape = values.shape[1:] if self.shape in (None, values.shape[1:]) else ()
        self.elements += kept.size
        self.odd += numbers.size - kept.size
        self.zeros += int((kept == 0).sum())
        self.low, self.high = float(kept.min(initial=self.low)), float(kept.max(initial=self.high))
        self._sum, self._squares = self._sum + float(kept.sum()), self._squares + float((kept**2).sum())
        self._add_units(_by_unit(np.where(finite, numbers, 0.0)))

    def _add_units(self, units: Array) -> None:
        peaks = np.abs(units).max(axis=0, initial=0.0)
        if self._peaks is None or self._peaks.shape == peaks.shape:
            self._peaks = peaks if self._peaks is None else np.maximum(self._peaks, peaks)
            self._units.add(units)

    @property
    def mean(self) -> float:
        """The mean of all finite numbers."""
        return self._sum / self.elements if self.elements else math.nan

    @property
    def deviation(self) -> float:
        """Their standard deviation."""
        return math.sqrt(max(self._squares / self.elements - self.mean**2, 0.0)) if self.elements else math.nan

    @property
    def units(self) -> Array:
        """The mean of each unit."""
        return self._units.mean

    @property
    def dead(self) -> list[int]:
        """The units that were 0 in every row."""
        return [] if self._peaks is None else np.flatnonzero(self._peaks == 0).tolist()


def _by_unit(values: Array) -> Array:
    """``values`` [rows, ...] as [any, units]."""
    if values.ndim == 1:
        return values[:, None]
    unit = 1 if values.ndim > 3 else values.ndim - 1
    return np.moveaxis(values, unit, -1).reshape(-1, values.shape[unit])


def flat(values: Array) -> Array:
    """Tensors [rows, ...] as pictures [rows, height, width]: channels are summed, a vector is one line."""
    while values.ndim > 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim <= 2:
        return values.reshape(len(values), 1, -1)
    pictures: Array = values.reshape(len(values), -1, *values.shape[-2:]).sum(axis=1)
    return pictures


class Tensors:
    """What the tensors of all rows come to, and those of some rows themselves.

    Args:
        results: all that the job has written.
        classes: the predicted classes for which there are means; None stands for all rows of a model without classes.
        rows: the rows whose tensors are kept.

    Attributes:
        means: by explanation's column and class, the mean picture [height, width].
        tokens: by explanation's column and class, the means by token.
        activations: by capture's column.
        kept: by row, its tensors by column; texts and tokens too.
    """

    def __init__(self, results: Results, classes: Collection[Class], rows: Collection[int]) -> None:
        self.means: dict[tuple[str, Class], Sums] = {}
        self.tokens: dict[tuple[str, Class], TokenSums] = {}
        self.activations: dict[str, Activations] = {}
        self.kept: dict[int, dict[str, Any]] = {row: {} for row in rows}
        self._classes = set(classes)
        self._pictured = list(pictured(results))
        self._averaged = [name for name in self._pictured if not is_ragged(results.type(name))]
        self._spoken = list(results.of_kind("token_attribution")) if results.of_kind("tokens") else []
        self._captured = list(results.of_kind("capture"))
        self._shown = [*self._pictured, *self._spoken, *results.of_kind("input", "tokens")]
        read = ["row", "error", *results.of_kind("prediction"), *self._shown, *self._captured]
        for batch in results.batches(read, _ROWS):
            self._add({name: from_arrow(batch.column(name)) for name in read})

    def _add(self, columns: Mapping[str, Any]) -> None:
        rows = [index for index, reason in enumerate(columns["error"]) if isinstance(reason, Unreadable)]
        for index in rows:
            if (row := int(columns["row"][index])) in self.kept:
                self.kept[row] = {name: columns[name][index] for name in self._shown}
        for name in self._captured:
            for values in _together(columns[name], rows):
                self.activations.setdefault(name, Activations()).add(values)
        for found, members in self._by_class(columns, rows).items():
            for name in self._averaged:
                for stack in _together(columns[name], members):
                    self.means.setdefault((name, found), Sums()).add(flat(stack))
            for name in self._spoken:
                self._add_tokens(name, found, columns, members)

    def _by_class(self, columns: Mapping[str, Any], rows: list[int]) -> dict[Class, list[int]]:
        members: dict[Class, list[int]] = {}
        for index in rows:
            found = int(columns["prediction"][index]) if "prediction" in columns else None
            if found in self._classes:
                members.setdefault(found, []).append(index)
        return members

    def _add_tokens(self, name: str, found: Class, columns: Mapping[str, Any], members: list[int]) -> None:
        sums = self.tokens.setdefault((name, found), TokenSums())
        for index in members:
            tokens, values = columns["tokens"][index], columns[name][index]
            if not isinstance(tokens, Unreadable) and not isinstance(values, Unreadable):
                sums.add(list(tokens), np.asarray(values))


def pictured(results: Results) -> dict[str, dict[str, str]]:
    """The columns of explanations that are shown as pictures: those that have no numbers by token."""
    by_token = {words["attribution"] for words in results.of_kind("token_attribution").values()}
    found = results.of_kind("attribution")
    spoken = by_token if results.of_kind("tokens") else set()
    return {name: words for name, words in found.items() if words["attribution"] not in spoken}


def _together(column: Any, rows: list[int]) -> list[Array]:
    """The tensors of ``rows`` that are there, stacked by their shapes."""
    if isinstance(column, np.ndarray):
        return [column[rows]] if rows else []
    stacks: dict[tuple[int, ...], list[Array]] = {}
    for index in rows:
        if not isinstance(column[index], Unreadable):
            value = np.asarray(column[index])
            stacks.setdefault(value.shape, []).append(value)
    return [np.stack(stack) for stack in stacks.values()]
