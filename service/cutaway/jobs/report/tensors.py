"""The second pass over the results: means and statistics of tensors, and the tensors of the rows that are shown."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from cutaway.contract.tensors import Array
from cutaway.jobs.reading import Results
from cutaway.jobs.records import is_ragged
from cutaway.jobs.report.examples import Class
from cutaway.jobs.report.features import DOTS, FeatureValues
from cutaway.jobs.sources import Unreadable
from cutaway.jobs.sources.columns import from_arrow

_BATCH = 64


class RunningMean:
    """The mean of tensors of one shape."""

    def __init__(self) -> None:
        self.count = 0
        self._sum: Any = 0.0

    def add(self, values: Array) -> None:
        """Adds ``values`` [rows, ...]."""
        self.count += len(values)
        self._sum = self._sum + values.sum(axis=0, dtype=np.float64)

    @property
    def mean(self) -> Array:
        """The mean over all rows."""
        return np.asarray(self._sum / self.count)


class TokenMeans:
    """Means of attributions by token."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()

    def add(self, tokens: list[str], values: Array) -> None:
        """Adds the tokens of one text, except its padding, and a number for each."""
        for token, value in without_padding(list(zip(tokens, values.tolist()))):
            self._sums[token] += value
            self._counts[token] += 1

    def means(self, least: int) -> list[tuple[str, float, int]]:
        """Returns token, mean and count of each token that occurs at least ``least`` times; the largest mean first."""
        kept = [(token, self._sums[token] / count, count) for token, count in self._counts.items() if count >= least]
        return sorted(kept, key=lambda entry: (-entry[1], entry[0]))


def without_padding(pairs: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Returns tokens and attributions without the padding: repetitions of the last token that all have 0."""
    end = len(pairs)
    while end and pairs[end - 1] == (pairs[-1][0], 0.0):
        end -= 1
    return pairs[:end] or pairs


class Activations:
    """Statistics of one capture over all rows. A unit is a channel of [C, H, W], else an index of the last axis.

    Attributes:
        shape: the shape for one row; empty if rows differ.
        elements: the number of finite values.
        not_finite: the number of other values.
        low, high: the smallest and the largest finite value.
        zeros: the number of values that are exactly 0.
    """

    def __init__(self) -> None:
        self.shape: tuple[int, ...] | None = None
        self.elements = self.not_finite = self.zeros = 0
        self.low, self.high = math.inf, -math.inf
        self._sum = self._squares = 0.0
        self._peaks: Array | None = None
        self._units = RunningMean()

    def add(self, values: Array) -> None:
        """Adds ``values`` [rows, ...]."""
        numbers = values.astype(np.float64)
        finite = np.isfinite(numbers)
        kept = numbers[finite]
        self.shape = values.shape[1:] if self.shape in (None, values.shape[1:]) else ()
        self.elements += kept.size
        self.not_finite += numbers.size - kept.size
        self.zeros += int((kept == 0).sum())
        self.low, self.high = float(kept.min(initial=self.low)), float(kept.max(initial=self.high))
        self._sum, self._squares = self._sum + float(kept.sum()), self._squares + float((kept**2).sum())
        units = _by_unit(np.where(finite, numbers, 0.0))
        peaks = np.abs(units).max(axis=0, initial=0.0)
        if self._peaks is None or self._peaks.shape == peaks.shape:
            self._peaks = peaks if self._peaks is None else np.maximum(self._peaks, peaks)
            self._units.add(units)

    @property
    def mean(self) -> float:
        """The mean of all finite values."""
        return self._sum / self.elements if self.elements else math.nan

    @property
    def deviation(self) -> float:
        """The standard deviation of all finite values."""
        return math.sqrt(max(self._squares / self.elements - self.mean**2, 0.0)) if self.elements else math.nan

    @property
    def units(self) -> Array:
        """The mean of each unit."""
        return self._units.mean

    @property
    def dead(self) -> list[int]:
        """The units that are 0 in every row."""
        return [] if self._peaks is None else np.flatnonzero(self._peaks == 0).tolist()


def _by_unit(values: Array) -> Array:
    """Reshapes ``values`` [rows, ...] to [any, units]."""
    if values.ndim == 1:
        return values[:, None]
    unit = 1 if values.ndim > 3 else values.ndim - 1
    return np.moveaxis(values, unit, -1).reshape(-1, values.shape[unit])


def as_pictures(values: Array) -> Array:
    """Reshapes ``values`` [rows, ...] to [rows, height, width]: sums channels; a vector becomes one line."""
    while values.ndim > 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim <= 2:
        return values.reshape(len(values), 1, -1)
    pictures: Array = values.reshape(len(values), -1, *values.shape[-2:]).sum(axis=1)
    return pictures


class Tensors:
    """Statistics of the tensors of all rows, and the tensors of some rows.

    Args:
        results: the results.
        classes: the predicted classes to compute means for; None for all rows of a model without classes.
        rows: the rows whose tensors are kept.

    Attributes:
        means: the mean picture [height, width], by column of the attribution and class.
        tokens: the means of tokens, by column of the attribution and class.
        activations: the statistics, by column of the capture.
        features: the values of features, by column of the attribution of a vector.
        kept: the tensors, texts and tokens of each kept row, by column.
    """

    def __init__(self, results: Results, classes: Collection[Class], rows: Collection[int]) -> None:
        self.means: dict[tuple[str, Class], RunningMean] = {}
        self.tokens: dict[tuple[str, Class], TokenMeans] = {}
        self.activations: dict[str, Activations] = {}
        self.kept: dict[int, dict[str, Any]] = {row: {} for row in rows}
        self._classes = set(classes)
        pictured = list(pictured_columns(results))
        vectors = vector_columns(results)
        every = max(1, -(-results.rows // DOTS))
        self.features = {name: FeatureValues(results.feature_names(name), every) for name in vectors}
        self._input_of = {name: f"input:{about['input']}" for name, about in vectors.items()}
        ragged = [name for name in pictured if is_ragged(results.schema.field(name).type)]
        self._averaged = [name for name in pictured if name not in vectors and name not in ragged]
        self._with_tokens = results.find(kind="token_attribution") if results.find(kind="tokens") else []
        self._captured = results.find(kind="capture")
        inputs = [*results.find(kind="input"), *results.find(kind="tokens")]
        self._shown = [*pictured, *self._with_tokens, *inputs]
        names = ["row", "error", *results.find(kind="prediction"), *self._shown, *self._captured]
        for batch in results.batches(names, _BATCH):
            self._add({name: from_arrow(batch.column(name)) for name in names})

    def _add(self, columns: Mapping[str, Any]) -> None:
        rows = [index for index, reason in enumerate(columns["error"]) if isinstance(reason, Unreadable)]
        for index in rows:
            if (row := int(columns["row"][index])) in self.kept:
                self.kept[row] = {name: columns[name][index] for name in self._shown}
        for name in self._captured:
            for values in _stacks(columns[name], rows):
                self.activations.setdefault(name, Activations()).add(values)
        for predicted, members in self._by_class(columns, rows).items():
            for name in self._averaged:
                for stack in _stacks(columns[name], members):
                    self.means.setdefault((name, predicted), RunningMean()).add(as_pictures(stack))
            for name in self._with_tokens:
                self._add_tokens(name, predicted, columns, members)

        for name in self.features:
            self._add_features(name, columns, rows)

    def _add_features(self, name: str, columns: Mapping[str, Any], rows: list[int]) -> None:
        """Adds the attributions of a vector; a row that was not explained has none."""
        members = [index for index in rows if not isinstance(columns[name][index], Unreadable)]
        if not members:
            return
        values, inputs = np.stack([columns[name][index] for index in members]), columns.get(self._input_of[name])
        known = inputs is not None and all(np.shape(inputs[index]) == values.shape[1:] for index in members)
        self.features[name].add(
            [int(columns["row"][index]) for index in members],
            values,
            [_predicted(columns, index) for index in members],
            np.stack([inputs[index] for index in members]) if inputs is not None and known else None,
        )

    def _by_class(self, columns: Mapping[str, Any], rows: list[int]) -> dict[Class, list[int]]:
        members: dict[Class, list[int]] = {}
        for index in rows:
            predicted = _predicted(columns, index)
            if predicted in self._classes:
                members.setdefault(predicted, []).append(index)
        return members

    def _add_tokens(self, name: str, predicted: Class, columns: Mapping[str, Any], members: list[int]) -> None:
        means = self.tokens.setdefault((name, predicted), TokenMeans())
        for index in members:
            tokens, values = columns["tokens"][index], columns[name][index]
            if not isinstance(tokens, Unreadable) and not isinstance(values, Unreadable):
                means.add(list(tokens), np.asarray(values))


def _predicted(columns: Mapping[str, Any], index: int) -> Class:
    return int(columns["prediction"][index]) if "prediction" in columns else None


def vector_columns(results: Results) -> dict[str, dict[str, str]]:
    """Returns the columns of attributions of inputs that are vectors of features."""
    return {
        name: about
        for name, about in pictured_columns(results).items()
        if about.get("input") and len(getattr(results.schema.field(name).type, "shape", ())) == 1
    }


def pictured_columns(results: Results) -> dict[str, dict[str, str]]:
    """Returns the columns of attributions that are shown as pictures: those without attributions by token."""
    by_token = {results.about(name)["attribution"] for name in results.find(kind="token_attribution")}
    in_text = by_token if results.find(kind="tokens") else set()
    columns = {name: results.about(name) for name in results.find(kind="attribution")}
    return {name: about for name, about in columns.items() if about["attribution"] not in in_text}


def _stacks(column: Any, rows: list[int]) -> list[Array]:
    """Returns the tensors of ``rows`` that have one, a stack [rows, ...] for each shape."""
    if isinstance(column, np.ndarray):
        return [column[rows]] if rows else []
    stacks: dict[tuple[int, ...], list[Array]] = {}
    for index in rows:
        if not isinstance(column[index], Unreadable):
            value = np.asarray(column[index])
            stacks.setdefault(value.shape, []).append(value)
    return [np.stack(stack) for stack in stacks.values()]
