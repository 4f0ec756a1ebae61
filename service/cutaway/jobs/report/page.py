"""The contents of a report, section by section, as its template shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from cutaway.contract.results import Verdict
from cutaway.contract.tensors import Array
from cutaway.jobs.reading import Results
from cutaway.jobs.report.examples import AttributionSummary, Class, Example
from cutaway.jobs.report.features import Chart, Contribution, contributions
from cutaway.jobs.report.overview import Overview
from cutaway.jobs.report.rows import is_correct, worst_verdict
from cutaway.jobs.report.tensors import (
    Activations,
    Tensors,
    as_pictures,
    pictured_columns,
    vector_columns,
    without_padding,
)
from cutaway.jobs.sources import Unreadable
from cutaway.views.pictures import Bar, as_image, bars, coarse, colour, heat, histogram, photograph, strongest

CLASSES = 10
"""The number of classes, those most often predicted, with mean attributions."""

_MATRIX = 20  # classes in the confusion matrix
_PAIRS = 8
_TOKENS = 8
_CONTRIBUTIONS = 6  # features of a card
_LEAST = 3  # occurrences of a token whose mean is shown
_DEAD_NAMED = 12


class Tile(NamedTuple):
    """A picture with a title; ``strip`` if it is the line of a vector."""

    title: str
    picture: str
    note: str = ""
    strip: bool = False


class Text(NamedTuple):
    """A text: tokens with their attribution and colour."""

    title: str
    tokens: list[tuple[str, float, str]]


class Card(NamedTuple):
    """One row with its pictures, texts and strongest features; ``is_first`` if no card before it shows the row."""

    example: Example
    tiles: list[Tile]
    texts: list[Text]
    features: list[tuple[str, list[Contribution]]]
    is_first: bool


class MethodRow(NamedTuple):
    """The row of one attribution in the report's summary: how many examples have each verdict, and statistics of the
    absolute convergence delta."""

    attribution: AttributionSummary
    shares: list[tuple[str, int, float]]
    median: float | None
    tail: float | None
    largest: float | None
    spread: tuple[list[Bar], float, float] | None


class Means(NamedTuple):
    """The mean values of one attribution, by class."""

    title: str
    tiles: list[Tile]
    tokens: list[tuple[str, list[tuple[str, float, int, str]]]]


class Layer(NamedTuple):
    """The statistics of one capture; ``dead`` are the first dead units, ``more`` the number of others."""

    name: str
    statistics: Activations
    zeros: float
    units: int
    dead: list[int]
    more: int
    bars: list[Bar]


class Matrix(NamedTuple):
    """A confusion matrix: for each label, counts by prediction with their share of the label's rows."""

    names: list[str]
    rows: list[tuple[str, list[tuple[int, float, bool]], int]]
    left_out: int
    pairs: list[tuple[str, str, int]]


class Page:
    """The contents of one report.

    Args:
        results: the results of the job.
    """

    def __init__(self, results: Results) -> None:
        self._results = results
        self.manifest = results.manifest
        self.shards = len(results.folder.parts())
        self.overview = overview = Overview(results)
        self.classes: list[Class] = [predicted for predicted, _ in overview.classes.most_common(CLASSES)]
        self.classes.sort(key=lambda predicted: -1 if predicted is None else predicted)
        shown = [*overview.confident, *overview.uncertain, *overview.mislabelled]
        shown += [finding.example for finding in overview.findings] + ([] if overview.confident else overview.first)
        self._tensors = Tensors(results, self.classes, {example.row for example in shown})
        self._vectors = vector_columns(results)
        self._pictured = {n: about for n, about in pictured_columns(results).items() if n not in self._vectors}
        self._shown = self._pictured | self._vectors
        self._carded: set[int] = set()
        self._inputs = results.find(kind="input")
        self._token_columns = {name: results.about(name) for name in results.find(kind="token_attribution")}

    @property
    def data(self) -> str:
        """The last part of the data set's path."""
        data = self.manifest.job["data"]
        return PurePath(data["path"]).name if isinstance(data, dict) else str(data)

    def methods(self) -> list[MethodRow]:
        """Returns verdicts and deltas of each attribution."""
        return [_method_row(attribution) for attribution in self.overview.attributions.values()]

    def checked(self) -> tuple[int, int]:
        """Returns the number of attributions that were checked, and of those that agree."""
        counts = [attribution.verdicts for attribution in self.overview.attributions.values()]
        return sum(sum(verdicts.values()) for verdicts in counts), sum(verdicts[Verdict.AGREES] for verdicts in counts)

    def disagreeing(self) -> list[Example]:
        """Returns the rows with the largest errors among those that disagree, each once."""
        findings = [finding for finding in self.overview.findings if finding.verdict == Verdict.DISAGREES]
        return list({finding.example.row: finding.example for finding in findings}.values())

    def cards(self, examples: Sequence[Example]) -> list[Card]:
        """Returns rows with their pictures and texts, in the same order."""
        return [self._card(example) for example in examples]

    def _card(self, example: Example) -> Card:
        is_first = not self.has_card(example)
        self._carded.add(example.row)
        return Card(example, self._tiles(example), self._texts(example), self._contributions(example), is_first)

    def has_card(self, example: Example) -> bool:
        """Returns whether a card so far shows the row."""
        return example.row in self._carded

    def filters(self, example: Example) -> dict[str, str]:
        """Returns what the filters of the page compare, by their name."""
        return {
            "class": example.prediction,
            "label": example.label or "",
            "verdict": worst_verdict(example),
            "correct": is_correct(example),
        }

    def choices(self) -> dict[str, list[str]]:
        """Returns the values that each filter offers, by its name; of filters with more than one."""
        found = [self.filters(line.example) for line in self.overview.lines.kept]
        order = {name: index for index, name in enumerate(self.manifest.labels)}
        values = {name: {each[name] for each in found} - {""} for name in ("class", "label", "verdict", "correct")}
        return {
            name: sorted(several, key=lambda value: (order.get(value, len(order)), value))
            for name, several in values.items()
            if len(several) > 1
        }

    def charts(self) -> list[Chart]:
        """Returns the importance of features, of every attribution of a vector."""
        names = {found: self._class_name(found) for found in self.classes}
        charts = [
            features.chart(self._title(name, self._vectors[name]), names)
            for name, features in self._tensors.features.items()
        ]
        return [chart for chart in charts if chart is not None]

    def _contributions(self, example: Example) -> list[tuple[str, list[Contribution]]]:
        kept = self._tensors.kept[example.row]
        found = []
        for name, about in self._vectors.items():
            if (values := _numbers(kept[name])) is not None:
                inputs = _numbers(kept.get(f"input:{about['input']}", ""))
                known = inputs if inputs is not None and inputs.shape == values.shape else None
                names = self._results.feature_names(name)
                found.append((self._title(name, about), contributions(names, values, known, _CONTRIBUTIONS)))
        return found

    def _tiles(self, example: Example) -> list[Tile]:
        kept = self._tensors.kept[example.row]
        arrays = {name: np.asarray(kept[name]) for name in self._inputs if isinstance(kept[name], np.ndarray)}
        images = {name: image for name, array in arrays.items() if (image := as_image(array)) is not None}
        tiles = [Tile(name.removeprefix("input:"), photograph(image)) for name, image in images.items()]
        beneath = next(iter(images.values())) if len(images) == 1 else None
        for name, about in self._pictured.items():
            if (values := _numbers(kept[name])) is not None:
                tiles.append(_heat_tile(self._title(name, about), values, beneath))
        return tiles

    def _title(self, name: str, about: dict[str, str]) -> str:
        """Returns the attribution's name; with the input's, if it explains several inputs."""
        several = sum(other["attribution"] == about["attribution"] for other in self._shown.values()) > 1
        return name if several else about["attribution"]

    def _texts(self, example: Example) -> list[Text]:
        kept = self._tensors.kept[example.row]
        tokens = kept.get("tokens")
        if not isinstance(tokens, (list, np.ndarray)):
            return []
        texts = []
        for name, about in self._token_columns.items():
            if (values := _numbers(kept[name])) is not None:
                scale = strongest(values)
                pairs = without_padding(list(zip(tokens, values.tolist())))
                coloured = [(token, value, colour(value, scale)) for token, value in pairs]
                texts.append(Text(about["attribution"], coloured))
        return texts

    def means(self) -> list[Means]:
        """Returns the mean values of every attribution that has them."""
        means = [Means(self._title(name, about), self._mean_tiles(name), []) for name, about in self._pictured.items()]
        for name, about in self._token_columns.items():
            means.append(Means(about["attribution"], [], list(self._mean_tokens(name))))
        return [mean for mean in means if mean.tiles or mean.tokens]

    def _mean_tiles(self, name: str) -> list[Tile]:
        """Returns the mean pictures of all classes, in one scale."""
        means = {
            predicted: self._tensors.means[name, predicted]
            for predicted in self.classes
            if (name, predicted) in self._tensors.means
        }
        if not means:
            return []
        pictures = {predicted: coarse(running.mean) for predicted, running in means.items()}
        scale = strongest(np.stack(list(pictures.values())))
        return [
            Tile(
                self._class_name(predicted), heat(picture, scale), f"{means[predicted].count:,} rows", len(picture) == 1
            )
            for predicted, picture in pictures.items()
        ]

    def _mean_tokens(self, name: str) -> Iterator[tuple[str, list[tuple[str, float, int, str]]]]:
        """Yields for each class the tokens with the largest and the smallest means."""
        for predicted in self.classes:
            if (name, predicted) in self._tensors.tokens:
                means = self._tensors.tokens[name, predicted].means(_LEAST)
                ends = means if len(means) <= 2 * _TOKENS else means[:_TOKENS] + means[-_TOKENS:]
                scale = max((abs(value) for _, value, _ in ends), default=1.0) or 1.0
                coloured = [(token, value, count, colour(value, scale)) for token, value, count in ends]
                yield self._class_name(predicted), coloured

    def _class_name(self, predicted: Class) -> str:
        return "all rows" if predicted is None else self.manifest.class_name(predicted)

    def layers(self) -> list[Layer]:
        """Returns the statistics of every capture."""
        return [_layer(name.removeprefix("capture."), found) for name, found in self._tensors.activations.items()]

    def matrix(self) -> Matrix | None:
        """Returns the confusion matrix of the most frequent labels; None without labels."""
        confusion = self.overview.confusion
        if not confusion:
            return None
        sizes: dict[str, int] = {}
        for (label, prediction), count in confusion.items():
            sizes[label] = sizes.get(label, 0) + count
            sizes.setdefault(prediction, 0)
        order = {name: index for index, name in enumerate(self.manifest.labels)}
        names = sorted(sizes, key=lambda name: (-sizes[name], name))[:_MATRIX]
        names.sort(key=lambda name: (order.get(name, len(order)), name))
        rows = [
            (label, [_cell(confusion[label, name], sizes[label], label == name) for name in names], sizes[label])
            for label in names
        ]
        wrong = [(label, name, count) for (label, name), count in confusion.items() if label != name]
        wrong.sort(key=lambda pair: (-pair[2], pair[0], pair[1]))
        return Matrix(names, rows, len(sizes) - len(names), wrong[:_PAIRS])


def _numbers(value: Any) -> Array | None:
    """Returns the tensor of one row; None if the row has none, or a text."""
    return None if isinstance(value, (Unreadable, str, bytes, list)) else np.asarray(value)


def _cell(count: int, total: int, right: bool) -> tuple[int, float, bool]:
    return count, count / total if total else 0.0, right


def _method_row(attribution: AttributionSummary) -> MethodRow:
    total = sum(attribution.verdicts.values())
    shares = [(verdict, count, count / total) for verdict, count in sorted(attribution.verdicts.items())]
    sizes = np.abs(attribution.deltas)
    spread = histogram(sizes)
    return MethodRow(
        attribution,
        shares,
        float(np.median(sizes)) if sizes.size else None,
        float(np.quantile(sizes, 0.99)) if sizes.size else None,
        float(sizes.max()) if sizes.size else None,
        None if spread is None else (bars(spread[0]), spread[1], spread[2]),
    )


def _heat_tile(title: str, values: Array, image: Array | None) -> Tile:
    """Returns the picture of one attribution; over the input, if both have about the same aspect ratio."""
    picture = coarse(as_pictures(values[None])[0])
    strip = picture.shape[0] == 1
    over_image = image is not None and not strip and abs(_aspect(picture) / _aspect(image) - 1) < 0.1
    scale = strongest(picture)
    return Tile(title, heat(picture, scale, image if over_image else None), f"± {scale:.2g}", strip)


def _aspect(picture: Array) -> float:
    return float(picture.shape[-1] / picture.shape[-2])


def _layer(name: str, found: Activations) -> Layer:
    dead = found.dead
    zeros = found.zeros / found.elements if found.elements else 0.0
    more = max(len(dead) - _DEAD_NAMED, 0)
    return Layer(name, found, zeros, found.units.size, dead[:_DEAD_NAMED], more, bars(found.units.tolist()))
