"""A Matplotlib figure with positions in inches from its upper left corner: sizes do not depend on the length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, RULE = "#1b1f24", "#6a737d", "#d0d7de"

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with Matplotlib, and has the marks of the verdicts
    "text.color": INK,
    "text.parse_math": False,  # a module may be called $x$
    "axes.edgecolor": RULE,
    "axes.facecolor": "white",
    "figure.facecolor": "white",
    "savefig.facecolor": "auto",
    "xtick.color": RULE,
    "xtick.labelcolor": FAINT,
    "xtick.labelsize": 7,
    "ytick.color": RULE,
    "ytick.labelcolor": FAINT,
    "ytick.labelsize": 7,
}
"""Matplotlib's settings while a sheet is drawn, in place of the user's own."""


class Box(NamedTuple):
    """A rectangle on a sheet, in inches."""

    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True)
class Sheet:
    """A figure of ``width`` x ``height`` inches."""

    figure: Figure
    width: float
    height: float

    def axes(self, box: Box) -> Axes:
        """Adds axes that fill ``box``."""
        bottom = self.height - box.top - box.height
        return self.figure.add_axes(
            (box.left / self.width, bottom / self.height, box.width / self.width, box.height / self.height)
        )

    def text(self, left: float, top: float, text: str, size: float, **look: Any) -> None:
        """Writes ``text`` with its baseline at ``top``."""
        self.figure.text(left / self.width, 1 - top / self.height, text, fontsize=size, **look)

    def rule(self, left: float, top: float, right: float) -> None:
        """Draws a thin horizontal line."""
        from matplotlib.lines import Line2D

        height = 1 - top / self.height
        ends = [left / self.width, right / self.width]
        self.figure.add_artist(Line2D(ends, [height, height], color=RULE, linewidth=0.8))


def fitted(text: str, width: float, size: float, weight: str, keep: Literal["start", "end"] = "end") -> str:
    """Returns ``text``, shortened to ``width`` inches. A module's name is recognised by its end, hence the default."""
    if length(text, size, weight) <= width:
        return text
    cuts = range(1, len(text))
    parts = ("…" + text[cut:] for cut in cuts) if keep == "end" else (text[:-cut] + "…" for cut in cuts)
    return next((part for part in parts if length(part, size, weight) <= width), "…")


def length(text: str, size: float, weight: str) -> float:
    """Returns the width of ``text`` in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size, weight=weight)
    points, _, _ = text_to_path.get_text_width_height_descent(text, font, False)
    return float(points) / 72
