"""The importance of the features of a vector, and the distribution of their attributions, as charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cutaway.contract.tensors import Array
from cutaway.jobs.report.examples import Class
from cutaway.views.pictures import short_number

DOTS = 300
"""The most rows that are drawn as dots."""

LEVELS = 7
"""The number of colours for values of a feature."""

WIDTH, HEIGHT = 420, 34
"""The size of the chart of one feature, in pixels."""

_SHOWN = 20  # features of one chart
_DOT = 4  # pixels
_LARGEST_SHARE = 0.995  # of the magnitudes; larger ones are drawn at the edge


class Feature(NamedTuple):
    """One feature of a chart.

    Attributes:
        name: its name.
        mean: the mean magnitude of its attributions.
        spread: the standard deviation of these magnitudes.
        share: the mean as a fraction of the largest of all features.
        by_class: for each predicted class, its name, the mean magnitude and the share.
        dots: for each colour from the lowest to the highest value, an SVG path with a point for each row.
    """

    name: str
    mean: float
    spread: float
    share: float
    by_class: list[tuple[str, float, float]]
    dots: list[str]

    @property
    def title(self) -> str:
        """All figures as text."""
        figures = [f"mean |attribution| {short_number(self.mean)} ± {short_number(self.spread)}"]
        figures += [f"predicted {name}: {short_number(mean)}" for name, mean, _ in self.by_class]
        return f"{self.name}: {'; '.join(figures)}"


class Chart(NamedTuple):
    """The features of one attribution, the most important first.

    Attributes:
        title: the name of the attribution.
        features: the features.
        others: the number of features that are not shown.
        limit: the attribution at both ends of the axis.
        coloured: whether the values of features are known.
        rows: the number of rows drawn as dots.
    """

    title: str
    features: list[Feature]
    others: int
    limit: float
    coloured: bool
    rows: int


class Contribution(NamedTuple):
    """One feature of one row: its name, its value if it is known, its attribution, and the attribution as a fraction of
    the row's largest."""

    name: str
    value: float | None
    attribution: float
    share: float


def contributions(names: Sequence[str], values: Array, inputs: Array | None, most: int) -> list[Contribution]:
    """Returns the ``most`` features with the largest attributions of one row.

    Args:
        names: the names of the features; empty if they have none.
        values: the attributions [features].
        inputs: the values of the features [features], if they are known.
        most: the number of features.
    """
    finite = np.where(np.isfinite(values), values, 0.0).astype(np.float64)
    top = float(np.abs(finite).max(initial=0.0)) or 1.0
    return [
        Contribution(
            _name(names, index),
            None if inputs is None else float(inputs[index]),
            float(finite[index]),
            float(finite[index]) / top,
        )
        for index in np.argsort(-np.abs(finite), kind="stable")[:most].tolist()
    ]


def _name(names: Sequence[str], index: int) -> str:
    return names[index] if index < len(names) else f"[{index}]"


class FeatureValues:
    """The attributions of one vector in all rows: sums by class, and some rows as they are.

    Args:
        names: the names of the features; empty if they have none.
        every: of how many rows one is kept.
    """

    def __init__(self, names: Sequence[str], every: int) -> None:
        self._names = names
        self._every = every
        self._sums: dict[Class, tuple[int, Array, Array]] = {}
        self._kept: list[Array] = []
        self._inputs: list[Array] = []

    def add(self, rows: Sequence[int], values: Array, predicted: Sequence[Class], inputs: Array | None) -> None:
        """Adds rows.

        Args:
            rows: the indices of the rows in the data set.
            values: the attributions [rows, features].
            predicted: the predicted class of each row.
            inputs: the values of the features [rows, features], if the results have them.
        """
        sizes = np.abs(np.where(np.isfinite(values), values, 0.0)).astype(np.float64)
        for found in set(predicted):
            members = sizes[[each == found for each in predicted]]
            count, total, squares = self._sums.get(found, (0, np.zeros(values.shape[1]), np.zeros(values.shape[1])))
            self._sums[found] = count + len(members), total + members.sum(0), squares + (members**2).sum(0)
        kept = [index for index, row in enumerate(rows) if row % self._every == 0]
        self._kept.append(values[kept])
        if inputs is not None and inputs.shape == values.shape:
            self._inputs.append(inputs[kept])

    def chart(self, title: str, class_names: Mapping[Class, str]) -> Chart | None:
        """Returns the chart, with the classes in ``class_names``; None without rows."""
        if not self._sums:
            return None
        rows = sum(count for count, *_ in self._sums.values())
        mean = np.sum([total for _, total, _ in self._sums.values()], axis=0) / rows
        squares = np.sum([squares for *_, squares in self._sums.values()], axis=0) / rows
        spread = np.sqrt(np.maximum(squares - mean**2, 0.0))
        means = {
            name: self._sums[found][1] / self._sums[found][0]
            for found, name in class_names.items()
            if found in self._sums and len(self._sums) > 1
        }
        top = max(float(each.max()) for each in (mean, *means.values())) or 1.0
        order = np.argsort(-mean, kind="stable")[:_SHOWN].tolist()
        kept, inputs = np.concatenate(self._kept), np.concatenate(self._inputs or [np.empty(0)])
        sizes = np.abs(kept[:, order])
        limit = float(np.quantile(sizes[np.isfinite(sizes)], _LARGEST_SHARE)) if sizes.size else 0.0
        coloured = inputs.shape == kept.shape
        features = []
        for index in order:
            by_class = [(name, float(each[index]), float(each[index]) / top) for name, each in means.items()]
            levels = _levels(inputs[:, index]) if coloured else np.full(len(kept), LEVELS // 2)
            dots = swarm(kept[:, index], levels, limit or 1.0)
            size, deviation = float(mean[index]), float(spread[index])
            name = _name(self._names, index)
            features.append(Feature(name, size, deviation, size / top, by_class, dots))
        return Chart(title, features, len(mean) - len(order), limit, coloured, len(kept))


def _levels(values: Array) -> Array:
    """Returns the colour of each value, 0 to `LEVELS` - 1, by its rank; equal values have one colour."""
    distinct, places = np.unique(values, return_inverse=True)
    if len(distinct) == 1:
        return np.full(len(values), LEVELS // 2)
    ranks = np.searchsorted(np.sort(values), values, side="left") / max(len(values) - 1, 1)
    ranks = ranks if len(distinct) > LEVELS else places / (len(distinct) - 1)
    levels: Array = np.minimum((ranks * LEVELS).astype(int), LEVELS - 1)
    return levels


def swarm(values: Array, levels: Array, limit: float) -> list[str]:
    """Returns a point for each value as SVG paths, one for each colour: x is the value, 0 in the middle, and points at
    the same x are side by side.

    Args:
        values: [rows].
        levels: the colour of each row.
        limit: the magnitude at both ends; larger values are drawn there.
    """
    finite = np.where(np.isfinite(values), values, 0.0)
    places = np.clip(finite / limit, -1, 1) * (WIDTH / 2 - _DOT) + WIDTH / 2
    bins = np.round(places / (_DOT - 1)).astype(int)
    stacks: dict[int, int] = {}
    most = int(np.bincount(bins).max()) if len(bins) else 1
    step = min(_DOT - 1, (HEIGHT - 2 * _DOT) / max(most - 1, 1))
    paths = [""] * LEVELS
    for place, slot, level in zip(places.tolist(), bins.tolist(), levels.tolist()):
        rank = stacks[slot] = stacks.get(slot, -1) + 1
        offset = (rank + 1) // 2 * (1 if rank % 2 else -1)
        paths[level] += f"M{place:.1f} {HEIGHT / 2 + offset * step:.1f}h0"
    return paths
