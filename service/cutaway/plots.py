"""One example's result as a picture: the prediction, the attributions with their verdicts, what was captured.

For ``cutaway inspect --plot`` and for notebooks. Matplotlib is imported when a picture is drawn, never before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from cutaway.errors import Reason, error
from cutaway.requests import Point
from cutaway.results import AttributionResult, InspectResult, Verdict
from cutaway.tensors import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches.
_COLUMNS = 4
_PICTURE = 1.9
_SCALE = 0.5  # right of each picture: its colours and their numbers
_GAP = 0.14
_CELL = _PICTURE + _SCALE + _GAP
_MARGIN = 0.4
_HEADER = 1.0
_HEADING = 0.38
_CAPTION = 0.42
_FOOT = 0.32  # below each picture: tick labels
_WIDTH = 2 * _MARGIN + _COLUMNS * _CELL - _GAP

_MOST_CHANNELS = 16
_MOST_BARS = 64
_MOST_PANELS = 24  # in a section
_MOST_STRETCH = 3  # an image is at most so many times longer than wide; beyond that it is a table of numbers
_OUTLIERS = 0.005  # the fraction of a large array's elements that may lie past the ends of its colours
_LARGE = 2000

_INK, _FAINT, _RULE, _BAR = "#1b1f24", "#6a737d", "#d0d7de", "#b6bfc9"
_SIGNED, _UNSIGNED = "RdBu_r", "viridis"
_POSITIVE, _NEGATIVE = "#b2182b", "#2166ac"  # the ends of the signed colours
_VERDICTS = {  # the worst first
    Verdict.DISAGREES: ("✗ disagrees", "#cf222e"),
    Verdict.INCONCLUSIVE: ("? inconclusive", _FAINT),
    Verdict.AGREES: ("✓ agrees", "#1a7f37"),
    Verdict.NOT_APPLICABLE: ("– no check", _FAINT),
}
_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # Matplotlib brings it along, and it has the marks
    "text.color": _INK,
    "axes.edgecolor": _RULE,
    "axes.facecolor": "white",
    "figure.facecolor": "white",
    "xtick.labelcolor": _FAINT,
    "xtick.labelsize": 7,
    "ytick.labelcolor": _FAINT,
    "ytick.labelsize": 7,
}


def save(result: InspectResult, path: Path, inputs: Mapping[str, Array] | None = None, row: int = 0) -> None:
    """Draw `figure` into the file ``path``; its suffix says as what: ``.png``, ``.svg`` or ``.pdf``."""
    figure(result, inputs, row).savefig(path, dpi=150)


def figure(result: InspectResult, inputs: Mapping[str, Array] | None = None, row: int = 0) -> Figure:
    """A picture of one example of ``result``.

    Args:
        result: what came back.
        inputs: what was sent, by name, batch first, to show images beside what is said of them.
        row: which example of the batch, from 0.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, where the batch has no such row.
    """
    import matplotlib
    from matplotlib.figure import Figure

    example = _Example(row, _rows(result))
    lines = [line for section in _sections(result, inputs or {}, example) for line in _lines(section)]
    height = _HEADER + sum(line.height for line in lines) + _MARGIN / 2
    with matplotlib.rc_context(_STYLE):
        sheet = _Sheet(Figure(figsize=(_WIDTH, height)), height)
        _draw_header(sheet, result, example)
        top = _HEADER
        for line in lines:
            _draw_line(sheet, line, top)
            top += line.height
    return sheet.figure


def _rows(result: InspectResult) -> int:
    return len(next(iter(result.predictions.values()), (None,)))


# What is shown


@dataclass(frozen=True)
class _Example:
    """One row of a batch."""

    row: int
    rows: int

    def __post_init__(self) -> None:
        if not 0 <= self.row < self.rows:
            raise error(Reason.INVALID_VALUE, f"the batch has the rows 0 to {self.rows - 1}, not {self.row}", "row")

    def of(self, array: Array) -> Array:
        """Its part of ``array``, or all of an array that has another first axis; float64 has room for every type."""
        batched = array.ndim > 0 and len(array) == self.rows
        return np.asarray(array[self.row] if batched else array, dtype=np.float64)


class _Box(NamedTuple):
    """A place on the sheet, in inches from its upper left corner."""

    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True)
class _Sheet:
    """A Matplotlib figure, measured in inches from its upper left corner."""

    figure: Figure
    height: float

    def axes(self, box: _Box) -> Axes:
        bottom = self.height - box.top - box.height
        return self.figure.add_axes(
            (box.left / _WIDTH, bottom / self.height, box.width / _WIDTH, box.height / self.height)
        )

    def text(self, left: float, top: float, text: str, size: float, **look: str) -> None:
        # No mathematics: a module may be called $x$.
        self.figure.text(left / _WIDTH, 1 - top / self.height, text, fontsize=size, parse_math=False, **look)

    def rule(self, left: float, right: float, top: float) -> None:
        from matplotlib.lines import Line2D

        height = 1 - top / self.height
        self.figure.add_artist(Line2D([left / _WIDTH, right / _WIDTH], [height, height], color=_RULE, linewidth=0.8))


_Drawing: TypeAlias = Callable[[_Sheet, _Box, Array], None]


@dataclass(frozen=True)
class _Panel:
    """One picture.

    Attributes:
        title: what it is of.
        detail: which part of that, and its shape.
        values: of one example.
        draw: how.
        verdict: what the check said, if there was one.
        span: how many columns it takes.
    """

    title: str
    detail: str
    values: Array
    draw: _Drawing
    verdict: Verdict | None = None
    span: int = 1


class _Section(NamedTuple):
    heading: str
    panels: Sequence[_Panel]


class _Line(NamedTuple):
    """Panels side by side; the first line of a section bears its heading."""

    heading: str
    panels: Sequence[_Panel]

    @property
    def height(self) -> float:
        return (_HEADING if self.heading else 0) + _CAPTION + _PICTURE + _FOOT


def _lines(section: _Section) -> Iterator[_Line]:
    shown = section.panels[:_MOST_PANELS]
    left_out = len(section.panels) - len(shown)
    heading = section.heading + (f" (the first {len(shown)} of {len(section.panels)})" if left_out else "")
    panels = iter(shown)
    while line := list(islice(panels, _COLUMNS)):
        yield _Line(heading, line)
        heading = ""


def _sections(result: InspectResult, inputs: Mapping[str, Array], example: _Example) -> Iterator[_Section]:
    yield _Section("Input and prediction", _forward(result, inputs, example))
    at_input = [panel for found in result.attributions if not found.layer for panel in _explanations(found, example)]
    yield _Section("At the input", [*_gradients(result, example), *at_input])
    at_layers = [panel for found in result.attributions if found.layer for panel in _explanations(found, example)]
    yield _Section("At layers", at_layers)
    yield _Section("Captured", list(_captures(result, example)))


def _forward(result: InspectResult, inputs: Mapping[str, Array], example: _Example) -> list[_Panel]:
    """What went in, where that is an image, and what came out; a lone vector takes the rest of the line."""
    images = [panel for name, array in inputs.items() for panel in _images(name, example.of(array))]
    outputs = {name: example.of(array) for name, array in result.predictions.items()}
    span = max(1, _COLUMNS - len(images)) if len(outputs) == 1 else 1
    return images + [
        _Panel(name, f"output · {_shape(values)}", values, _draw_vector_or(marked), span=span if values.ndim < 2 else 1)
        for (name, values), marked in zip(outputs.items(), _marks(result, example))
    ]
