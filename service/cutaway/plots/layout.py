"""The layout of a sheet: a header, then the sections with their panels in lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cutaway.plots.panels import COLUMNS, Example, Panel, Section
from cutaway.plots.pictures import SCALE
from cutaway.plots.sheet import FAINT, STYLE, Box, Sheet, fitted, length
from cutaway.results import InspectResult, Verdict
from cutaway.schema.tensors import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Inches.
_PICTURE = 1.9
_CELL = _PICTURE + SCALE + 0.14
_GAP = 0.14
_MARGIN = 0.4
_HEADER = 1.0
_HEADING = 0.38
_CAPTION = 0.42
_FOOT = 0.32  # below each picture: tick labels
_WIDTH = 2 * _MARGIN + COLUMNS * _CELL - _GAP

_MAX_PANELS = 24  # in a section
_MAX_TARGETS = 3  # of an example, in the header
_VERDICTS = {
    Verdict.AGREES: ("✓ agrees", "#1a7f37"),
    Verdict.DISAGREES: ("✗ disagrees", "#cf222e"),
    Verdict.INCONCLUSIVE: ("? inconclusive", FAINT),
    Verdict.NOT_APPLICABLE: ("– no check", FAINT),
}


class _Line(NamedTuple):
    """Panels side by side; the first line of a section has the section's heading."""

    heading: str
    panels: Sequence[Panel]

    @property
    def height(self) -> float:
        return (_HEADING if self.heading else 0) + _CAPTION + _PICTURE + _FOOT


def draw(result: InspectResult, example: Example, sections: Iterable[Section]) -> Figure:
    """Draws a sheet that is as long as its sections need."""
    import matplotlib
    from matplotlib.figure import Figure

    lines = [line for section in sections for line in _lines(section)]
    height = _HEADER + sum(line.height for line in lines) + _MARGIN / 2
    with matplotlib.rc_context(STYLE):
        sheet = Sheet(Figure(figsize=(_WIDTH, height)), _WIDTH, height)
        _draw_header(sheet, result, example)
        top = _HEADER
        for line in lines:
            _draw_line(sheet, line, top)
            top += line.height
    return sheet.figure


def _lines(section: Section) -> Iterator[_Line]:
    shown = section.panels[:_MAX_PANELS]
    total = len(section.panels)
    heading = section.heading + ("" if len(shown) == total else f": the first {len(shown)} of {total}")
    panels = iter(shown)
    while line := list(islice(panels, COLUMNS)):
        yield _Line(heading, line)
        heading = ""


def _draw_header(sheet: Sheet, result: InspectResult, example: Example) -> None:
    provenance = result.provenance
    title = f"{provenance.model} {provenance.version}".strip() or "result"
    sheet.text(_MARGIN, 0.5, f"{title}{_predicted(result, example)}", 16, weight="bold")
    facts = {
        "example": f"{example.row + 1} of {example.rows}",
        "weights": provenance.weights_sha256[:8],
        "torch": provenance.torch_version,
        "Captum": provenance.captum_version,
    }
    parts = [*_targets(result, example), *(f"{name} {fact}" for name, fact in facts.items() if fact)]
    sheet.text(_MARGIN, 0.76, "   ·   ".join(parts), 8.5, color=FAINT)


def _predicted(result: InspectResult, example: Example) -> str:
    if not result.classes:
        return ""
    predicted = result.classes[example.row]
    label = fitted(predicted.label or f"class {predicted.index}", _WIDTH / 2, 16, "bold", keep="start")
    return f"   →   {label}  ({predicted.probability:.1%})"


def _targets(result: InspectResult, example: Example) -> Iterator[str]:
    arrays = {"class" if result.classes else "element": result.targets, "value": result.target_values}
    parts = [_numbers(name, array[example.row]) for name, array in arrays.items() if array is not None]
    if parts:
        yield f"explained: {', '.join(parts)}"


def _numbers(name: str, array: Array) -> str:
    """Returns ``class 3``, or ``class 3 5 7 …`` for a target with several."""
    numbers = np.atleast_1d(array).tolist()
    shown = [str(number) if isinstance(number, int) else f"{number:.4g}" for number in numbers[:_MAX_TARGETS]]
    return " ".join([name, *shown, *["…"] * (len(numbers) > _MAX_TARGETS)])


def _draw_line(sheet: Sheet, line: _Line, top: float) -> None:
    if line.heading:
        sheet.text(_MARGIN, top + 0.14, line.heading, 10.5, weight="bold", color=FAINT)
        sheet.rule(_MARGIN, top + 0.22, _WIDTH - _MARGIN)
        top += _HEADING
    left = _MARGIN
    for panel in line.panels:
        width = panel.span * _CELL - _GAP
        _draw_caption(sheet, panel, left, top, width)
        panel.draw(sheet, Box(left, top + _CAPTION, width - SCALE, _PICTURE), panel.values)
        left += panel.span * _CELL


def _draw_caption(sheet: Sheet, panel: Panel, left: float, top: float, width: float) -> None:
    sheet.text(left, top + 0.14, fitted(panel.title, width - 0.1, 9, "bold"), 9, weight="bold")
    detail_width = width
    if panel.verdict is not None:
        mark, colour = _VERDICTS[panel.verdict]
        right = width - SCALE + 0.13  # flush with the scale's colours
        sheet.text(left + right, top + 0.31, mark, 7, color=colour, weight="bold", ha="right")
        detail_width = right - length(mark, 7, "bold") - 0.08
    sheet.text(left, top + 0.31, fitted(panel.detail, detail_width, 7.5, "normal"), 7.5, color=FAINT)
