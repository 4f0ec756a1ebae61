"""What a report shows, section by section, in the words and pictures that its template lays out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from cutaway.jobs.report.examples import Example, Explanation
from cutaway.jobs.report.overview import Overview
from cutaway.jobs.report.pictures import as_image, bars, coarse, colour, heat, histogram, photograph, strongest
from cutaway.jobs.report.results import Results
from cutaway.jobs.report.tensors import Activations, Array, Class, Tensors, flat, pictured, without_padding
from cutaway.jobs.sources import Unreadable
from cutaway.results import Verdict

CLASSES = 10
"""For how many classes, the most often predicted, there are mean attributions."""

_MATRIX = 20  # classes of a confusion matrix
_PAIRS = 8
_TOKENS = 8
_LEAST = 3  # how often a token occurs, at least, to have a mean worth showing
_DEAD_NAMED = 12


class Tile(NamedTuple):
    """A picture with a title below it; ``strip`` where it is one line of a vector."""

    title: str
    picture: str
    note: str = ""
    strip: bool = False


class Words(NamedTuple):
    """A text, each token with its number and colour."""

    title: str
    tokens: list[tuple[str, float, str]]


class Card(NamedTuple):
    """One row with its pictures."""

    example: Example
    tiles: list[Tile]
    words: list[Words]


class MethodRow(NamedTuple):
    """One explanation in the table of verdicts."""

    explanation: Explanation
    shares: list[tuple[str, int, float]]
    median: float | None
    tail: float | None
    largest: float | None
    spread: tuple[list[tuple[float, float, float, float]], float, float] | None


class Means(NamedTuple):
    """The mean attribution of one explanation, by class."""

    title: str
    tiles: list[Tile]
    tokens: list[tuple[str, list[tuple[str, float, int, str]]]]


class Layer(NamedTuple):
    """One captured place."""

    name: str
    seen: Activations
    zeros: float
    units: int
    dead: list[int]
    more: int
    bars: list[tuple[float, float, float, float]]


class Matrix(NamedTuple):
    """A confusion matrix: for each label its counts by prediction, with their share of the label's rows."""

    names: list[str]
    rows: list[tuple[str, list[tuple[int, float, bool]], int]]
    left_out: int
    pairs: list[tuple[str, str, int]]


class Page:
    """All of one report.

    Args:
        results: what the job has written.
    """

    def __init__(self, results: Results) -> None:
        self.results = results
        self.manifest = results.manifest
        self.overview = Overview(results)
        self.classes: list[Class] = [found for found, _ in self.overview.classes.most_common(CLASSES)]
        self.classes.sort(key=lambda found: -1 if found is None else found)
        looked_at = [finding.example for finding in self.overview.findings]
        for examples in self._lists():
            looked_at += examples
        self._tensors = Tensors(results, self.classes, {example.row for example in looked_at})
        self._pictured = pictured(results)
        self._inputs = list(results.of_kind("input"))

    @property
    def data(self) -> str:
        """What the data set is called: the last part of its path."""
        words = self.manifest.job["data"]
        return PurePath(words["path"]).name if isinstance(words, dict) else str(words)

    def _lists(self) -> Iterator[list[Example]]:
        overview = self.overview
        yield from (overview.sure, overview.unsure, overview.contrary)
        if not overview.sure:
            yield overview.first

    def methods(self) -> list[MethodRow]:
        """Verdicts and deltas of each explanation."""
        return [_method_row(explanation) for explanation in self.overview.explanations.values()]

    def checked(self) -> tuple[int, int]:
        """How many explanations were checked, and how many of them agree."""
        found = [explanation.verdicts for explanation in self.overview.explanations.values()]
        return sum(sum(one.values()) for one in found), sum(one[Verdict.AGREES] for one in found)

    def disagreeing(self) -> list[Example]:
        """The rows that disagree most, each once."""
        found = {one.example.row: one.example for one in self.overview.findings if one.verdict == Verdict.DISAGREES}
        return list(found.values())

    def cards(self, examples: Sequence[Example]) -> list[Card]:
        """Rows with their pictures, in that order."""
        return [Card(example, self._tiles(example), self._words(example)) for example in examples]

    def _tiles(self, example: Example) -> list[Tile]:
        kept = self._tensors.kept[example.row]
        images = [
            (name, as_image(np.asarray(kept[name]))) for name in self._inputs if isinstance(kept[name], np.ndarray)
        ]
        shown = [(name, image) for name, image in images if image is not None]
        tiles = [Tile(name.removeprefix("input."), photograph(image)) for name, image in shown]
        for name, words in self._pictured.items():
            if (values := _numbers(kept[name])) is not None:
                tiles.append(_heat_tile(self._title(name, words), values, shown[0][1] if len(shown) == 1 else None))
        return tiles

    def _title(self, name: str, words: dict[str, str]) -> str:
        """The explanation's name; where it explains several inputs, the input's too."""
        several = sum(other["attribution"] == words["attribution"] for other in self._pictured.values()) > 1
        return name if several else words["attribution"]

    def _words(self, example: Example) -> list[Words]:
        kept = self._tensors.kept[example.row]
        tokens = kept.get("tokens")
        if not isinstance(tokens, (list, np.ndarray)):
            return []
        found = []
        for name, words in self.results.of_kind("token_attribution").items():
            if (values := _numbers(kept[name])) is not None:
                scale = strongest(values)
                pairs = without_padding(list(zip(tokens, values.tolist())))
                shades = [(token, value, colour(value, scale)) for token, value in pairs]
                found.append(Words(words["attribution"], shades))
        return found

    def means(self) -> list[Means]:
        """Mean attributions by class, of every explanation that has them; one scale for all classes of each."""
        found = [Means(self._title(name, words), self._mean_tiles(name), []) for name, words in self._pictured.items()]
        for name, words in self.results.of_kind("token_attribution").items():
            found.append(Means(words["attribution"], [], list(self._mean_tokens(name))))
        return [one for one in found if one.tiles or one.tokens]

    def _mean_tiles(self, name: str) -> list[Tile]:
        sums = {
            found: self._tensors.means[name, found] for found in self.classes if (name, found) in self._tensors.means
        }
        if not sums:
            return []
        pictures = {found: coarse(one.mean) for found, one in sums.items()}
        scale = strongest(np.stack(list(pictures.values())))
        return [
            Tile(self._class(found), heat(picture, scale), f"{sums[found].count:,} rows", len(picture) == 1)
            for found, picture in pictures.items()
        ]

    def _mean_tokens(self, name: str) -> Iterator[tuple[str, list[tuple[str, float, int, str]]]]:
        """By class, the tokens that speak most for it and most against it."""
        for found in self.classes:
            if (name, found) in self._tensors.tokens:
                means = self._tensors.tokens[name, found].means(_LEAST)
                ends = means if len(means) <= 2 * _TOKENS else means[:_TOKENS] + means[-_TOKENS:]
                scale = max((abs(value) for _, value, _ in ends), default=1.0) or 1.0
                yield self._class(found), [(token, value, count, colour(value, scale)) for token, value, count in ends]

    def _class(self, found: Class) -> str:
        return "all rows" if found is None else self.results.class_name(found)

    def layers(self) -> list[Layer]:
        """Statistics of every captured place."""
        return [_layer(name.removeprefix("capture."), seen) for name, seen in self._tensors.activations.items()]

    def matrix(self) -> Matrix | None:
        """The confusion matrix of the most frequent labels; None where there are no labels."""
        confusion = self.overview.confusion
        if not confusion:
            return None
        sizes: dict[str, int] = {}
        for pair, count in confusion.items():
            for name, one in zip(pair, (count, 0)):
                sizes[name] = sizes.get(name, 0) + one
        order = {name: index for index, name in enumerate(self.manifest.labels)}
        kept = sorted(sizes, key=lambda name: (-sizes[name], name))[:_MATRIX]
        kept.sort(key=lambda name: (order.get(name, len(order)), name))
        rows = [
            (label, [_cell(confusion[label, name], sizes[label], label == name) for name in kept], sizes[label])
            for label in kept
        ]
        wrong = [(label, name, count) for (label, name), count in confusion.items() if label != name]
        wrong.sort(key=lambda pair: (-pair[2], pair[0], pair[1]))
        return Matrix(kept, rows, len(sizes) - len(kept), wrong[:_PAIRS])


def _numbers(value: Any) -> Array | None:
    """A tensor of one row; None where the row has none, or a text."""
    return None if isinstance(value, (Unreadable, str, bytes, list)) else np.asarray(value)


def _cell(count: int, total: int, right: bool) -> tuple[int, float, bool]:
    return count, count / total if total else 0.0, right


def _method_row(explanation: Explanation) -> MethodRow:
    total = sum(explanation.verdicts.values())
    shares = [(verdict, count, count / total) for verdict, count in sorted(explanation.verdicts.items())]
    sizes = np.abs(explanation.deltas)
    spread = histogram(sizes)
    return MethodRow(
        explanation,
        shares,
        float(np.median(sizes)) if sizes.size else None,
        float(np.quantile(sizes, 0.99)) if sizes.size else None,
        float(sizes.max()) if sizes.size else None,
        None if spread is None else (bars(spread[0]), spread[1], spread[2]),
    )


def _heat_tile(title: str, values: Any, image: Any) -> Tile:
    """One explanation; over the input where it has the input's proportions."""
    picture = coarse(flat(values[None])[0])
    alike = image is not None and abs(_proportion(picture) / _proportion(image) - 1) < 0.1 and picture.shape[0] > 1
    scale = strongest(picture)
    note = f"± {scale:.2g}"
    return Tile(title, heat(picture, scale, image if alike else None), note, picture.shape[0] == 1)


def _proportion(picture: Any) -> float:
    return float(picture.shape[-1] / picture.shape[-2])


def _layer(name: str, seen: Activations) -> Layer:
    dead, units = seen.dead, seen.units
    return Layer(
        name,
        seen,
        seen.zeros / seen.elements if seen.elements else 0.0,
        units.size,
        dead[:_DEAD_NAMED],
        max(len(dead) - _DEAD_NAMED, 0),
        bars(units.tolist()),
    )
