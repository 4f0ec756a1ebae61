"""A figure as a sheet: a header, then panels in lines below the headings of their sections, then lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from cutaway.contract.results import Verdict
from cutaway.contract.tensors import Array
from cutaway.views.drawings import FAINT, SCALE, STYLE, WRONG, Box, Drawing, Sheet, fitted, length

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 4
"""The panels side by side."""

MAX_PANELS = 24
"""The most panels of a section."""


@dataclass(frozen=True)
class Panel:
    """A panel of a figure, which shows one tensor.

    Attributes:
        title: the first line of the caption, such as a method or a module.
        detail: the second line: the part, and its shape.
        values: one example's tensor, float64.
        draw: draws the values.
        verdict: the worst verdict of the checks, if there are any.
        span: the number of columns that the panel takes.
    """

    title: str
    detail: str
    values: Array
    draw: Drawing
    verdict: Verdict | None = None
    span: int = 1


# The layout of a sheet, in inches: a header, then the sections with their panels in lines.
_PICTURE = 1.9
_CELL = _PICTURE + SCALE + 0.14
_GAP = 0.14
_MARGIN = 0.4
_HEADER = 1.0
_HEADING = 0.38
_CAPTION = 0.42
_FOOT = 0.32  # below a picture: tick labels
_WORDS = 0.2  # a line of text
_WIDTH = 2 * _MARGIN + COLUMNS * _CELL - _GAP

_VERDICTS = {
    Verdict.AGREES: ("✓ agrees", "#1a7f37"),
    Verdict.DISAGREES: ("✗ disagrees", WRONG),
    Verdict.INCONCLUSIVE: ("? inconclusive", FAINT),
    Verdict.NOT_APPLICABLE: ("– no check", FAINT),
}


def draw_sheet(
    title: str, facts: Sequence[str], sections: Mapping[str, Sequence[Panel]], words: Sequence[str]
) -> Figure:
    """Draws a sheet that is as long as its sections need.

    Args:
        title: the first line.
        facts: the second line.
        sections: the panels below each heading; a heading may have none.
        words: lines of text at the end.
    """
    import matplotlib
    from matplotlib.figure import Figure

    lines = [line for heading, panels in sections.items() for line in _lines(heading, panels)]
    top = _HEADER + sum(line.height for line in lines)
    height = top + (_HEADING + len(words) * _WORDS) * bool(words) + _MARGIN / 2
    with matplotlib.rc_context(STYLE):
        sheet = Sheet(Figure(figsize=(_WIDTH, height)), _WIDTH, height)
        sheet.text(_MARGIN, 0.5, fitted(title, _WIDTH - 2 * _MARGIN, 16, "bold", keep="start"), 16, weight="bold")
        sheet.text(_MARGIN, 0.76, "   ·   ".join(facts), 8.5, color=FAINT)
        _draw_words(sheet, words, top)
        top = _HEADER
        for line in lines:
            _draw_line(sheet, line, top)
            top += line.height
    return sheet.figure


def _draw_words(sheet: Sheet, words: Sequence[str], top: float) -> None:
    if words:
        _draw_heading(sheet, "In words", top)
    for number, line in enumerate(words):
        text = fitted(line, _WIDTH - 2 * _MARGIN, 8.5, "normal", keep="start")
        sheet.text(_MARGIN, top + _HEADING + 0.1 + number * _WORDS, text, 8.5)


def _draw_heading(sheet: Sheet, heading: str, top: float) -> None:
    sheet.text(_MARGIN, top + 0.14, heading, 10.5, weight="bold", color=FAINT)
    sheet.rule(_MARGIN, top + 0.22, _WIDTH - _MARGIN)


class _Line(NamedTuple):
    """Panels side by side; the first line of a section has the section's heading."""

    heading: str
    panels: Sequence[Panel]

    @property
    def height(self) -> float:
        return (_HEADING if self.heading else 0) + _CAPTION + _PICTURE + _FOOT


def _lines(heading: str, panels: Sequence[Panel]) -> Iterator[_Line]:
    """Yields the panels of a section in lines of `COLUMNS`. If there are too many panels, shows the first, which are
    the worst, if they have verdicts; else evenly spaced ones."""
    if len(panels) > MAX_PANELS:
        judged = any(panel.verdict is not None or not panel.values.size for panel in panels)
        heading += f": {MAX_PANELS} of {len(panels)}, {'the worst first' if judged else 'from the first to the last'}"
        depths = [number * (len(panels) - 1) // (MAX_PANELS - 1) for number in range(MAX_PANELS)]
        panels = panels[:MAX_PANELS] if judged else [panels[number] for number in depths]
    line: list[Panel] = []
    for panel in panels:
        if sum(each.span for each in (*line, panel)) > COLUMNS:
            yield _Line(heading, line)
            heading, line = "", []
        line.append(panel)
    if line:
        yield _Line(heading, line)


def _draw_line(sheet: Sheet, line: _Line, top: float) -> None:
    if line.heading:
        _draw_heading(sheet, line.heading, top)
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
