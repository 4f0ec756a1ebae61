"""Drawings of one array of one example: an image, a grid of channels, bars, or a table of colours."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from cutaway.contract.results.explanations import AttributionError
from cutaway.contract.results.summary import harmless
from cutaway.contract.tensors import Array
from cutaway.views.pictures import (
    COARSE,
    FEATURES,
    OUTLIERS,
    USUAL,
    Ground,
    Look,
    by_feature,
    ends,
    layout_of,
    without_ones,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


INK, FAINT, RULE, WRONG = "#1b1f24", "#6a737d", "#d0d7de", "#cf222e"

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
    """A figure of ``width`` x ``height`` inches, with positions in inches from its upper left corner."""

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


Drawing: TypeAlias = Callable[[Sheet, Box, Array], None]
"""A function that draws an array into a box.

Its colour scale is right of the box, within `SCALE` inches; labels are below it.
"""

SCALE = 0.5
"""Inches right of a picture for its colour scale."""

MAX_CHANNELS = 16
"""The most channels of a tensor that are drawn."""

MOST_BARS = 16
"""The most named elements of a vector that are drawn."""

_MAX_BARS = 64
_NAMED, _MOST_NAMED = 0.6, 1.2  # the part of a box that is for names, and the most inches
_LEAST_BARS = 4  # the room that a few bars take
_NAME, _WORDS = 20, 23  # letters of a name, and of it with the note behind it
_LABELS_PER_INCH = 2.6
_LEAST_NAME = 0.3  # inches of a name below a bar
_LARGE = 2000

_BETWEEN = "#e6eaee"
_SIGNED, _UNSIGNED, _GREY = "RdBu_r", "viridis", "gray"
_POSITIVE, _NEGATIVE, _MAGNITUDE, _QUIET = "#b2182b", "#2166ac", "#21918c", "#b6bfc9"


class _Range(NamedTuple):
    """A colour scale: its colours, the numbers at its ends, and whether some elements lie beyond them."""

    colours: str
    low: float
    high: float
    clipped: bool = False


def _range(picture: Array, look: Look) -> _Range:
    """Returns the colour scale for an array: 0 is white if there are negative numbers, else the darkest colour."""
    sizes = np.abs(picture[np.isfinite(picture)])
    largest = float(sizes.max(initial=0))
    outliers = (OUTLIERS if sizes.size > _LARGE else 0) if look.outlier_percent is None else look.outlier_percent / 100
    high = float(np.quantile(sizes, 1 - outliers)) if outliers and sizes.size else largest
    high = high or largest or 1.0
    signed = bool((picture < 0).any())
    colours = look.cmap or (_SIGNED if signed else _UNSIGNED)
    return _Range(colours, -high if signed else 0.0, high, clipped=largest > high)


def draw_image(sheet: Sheet, box: Box, values: Array) -> None:
    """Draws an input [height, width] or [1 or 3, height, width], grey or in colours."""
    if values.ndim == 3 and len(values) == 3:
        _bare(sheet.axes(box)).imshow(_levels(values))
    else:
        _draw_picture(sheet, box, without_ones(values), _Range(_GREY, *ends(values)))


def draw_with_norms(sheet: Sheet, box: Box, values: Array) -> None:
    """Draws a captured tensor or an output; a table (usually tokens by features) has its rows' norms beside it."""
    _draw_array(sheet, box, values, "norm", lambda table: np.sqrt((table**2).sum(axis=1)))


def draw_with_sums(sheet: Sheet, box: Box, values: Array, look: Look = USUAL, under: Ground | None = None) -> None:
    """Draws an attribution or a gradient; a table (usually tokens by features) has its rows' sums beside it.

    Args:
        sheet: where to draw.
        box: where on the sheet.
        values: of one example.
        look: how.
        under: the image below a map.
    """
    _draw_array(sheet, box, look.of(values), "sum", lambda table: table.sum(axis=1), look, under)


def draw_bars(
    sheet: Sheet,
    box: Box,
    values: Array,
    highlighted: tuple[int, str, str] | None = None,
    names: Sequence[str] = (),
) -> None:
    """Draws a vector as bars.

    Args:
        sheet: where to draw.
        box: where on the sheet.
        values: of one example.
        highlighted: the bar of the predicted class, its name, which may be shortened, and what follows the name.
        names: of all bars, which are below them if they have room; else some have their numbers.
    """
    heights = _finite(values.reshape(-1))
    sides = _sides(heights) if highlighted is None else [(_QUIET, heights)]
    axes = sheet.axes(box)
    for colour, side in sides:
        if heights.size > _MAX_BARS:
            axes.fill_between(np.arange(heights.size), side, step="mid", color=colour, linewidth=0)
        else:
            axes.bar(np.arange(heights.size), side, color=colour)
    _style_bars(axes, heights.size, box.width)
    room = box.width / max(heights.size, 1) - 0.06
    if names and room >= _LEAST_NAME:
        axes.set_xticks(range(heights.size), [fitted(name, room, 7, "normal", keep="start") for name in names])
    if highlighted is not None:
        _highlight(axes, heights, *highlighted, box.width)


def draw_features(
    sheet: Sheet,
    box: Box,
    values: Array,
    names: Sequence[str],
    look: Look = USUAL,
    notes: Sequence[str] = (),
) -> None:
    """Draws the `MOST_BARS` largest elements of a vector as bars with their names and numbers, in their order.

    Args:
        sheet: where to draw.
        box: where on the sheet.
        values: of one example.
        names: of the elements.
        look: how.
        notes: what stands behind the names, such as the numbers that were sent.
    """
    lengths = _finite(look.of(values).reshape(-1))
    largest = np.sort(np.argsort(-np.abs(lengths), kind="stable")[:MOST_BARS])
    names_width = min(_NAMED * box.width, _MOST_NAMED)
    axes = _bare(sheet.axes(box._replace(left=box.left + names_width, width=box.width - names_width)))
    colours = [_POSITIVE if lengths[number] >= 0 else _NEGATIVE for number in largest]
    axes.barh(np.arange(len(largest)), lengths[largest], color=colours)
    axes.set_ylim(max(len(largest), _LEAST_BARS) - 0.5, -0.5)
    for place, number in enumerate(largest):
        note = notes[number] if notes else ""
        room = min(_NAME, max(_WORDS - len(note), 6))
        name = names[number] if len(names[number]) <= room else f"{names[number][: room - 1]}…"
        for side, words, align in ((-0.04, name + note, "right"), (1.04, _number(float(lengths[number])), "left")):
            text = axes.text(side, place, words, fontsize=6, color=INK, ha=align, va="center", parse_math=False)
            text.set_transform(axes.get_yaxis_transform())


def draw_series(
    sheet: Sheet,
    box: Box,
    values: Array,
    names: Sequence[str],
    look: Look = USUAL,
    sent: Array | None = None,
) -> None:
    """Draws a series [time, features]: for each feature its numbers as a line, and below it its attributions.

    Args:
        sheet: where to draw.
        box: where on the sheet.
        values: the attributions, those with the largest sums first; without ``sent`` the numbers, in their order.
        names: of the features; may be empty.
        look: how attributions are drawn.
        sent: the numbers that ``values`` are about.
    """
    drawn = look.of(without_ones(values)) if sent is not None else without_ones(values)
    lines, scale = drawn if sent is None else without_ones(sent), _range(drawn, look)
    shown = [*range(min(FEATURES, lines.shape[1]))] if sent is None else by_feature(drawn)
    tall, left = box.height / len(shown), box.left + _NAMES
    place = Box(left, box.top, box.left + box.width - left, box.height)
    for number, feature in enumerate(shown):
        top = box.top + number * tall
        name = names[feature] if names else f"feature {feature}"
        sheet.text(box.left, top + 0.45 * tall, fitted(name, _NAMES - 0.1, 7, "normal", keep="start"), 7)
        axes = _bare(sheet.axes(place._replace(top=top, height=(0.62 if sent is not None else 0.85) * tall)))
        axes.plot(np.arange(len(lines)), lines[:, feature], color=INK, linewidth=0.8)
        axes.set_xlim(-0.5, len(lines) - 0.5)
        axes.spines[:].set_visible(False)
        if sent is not None:
            strip = sheet.axes(place._replace(top=top + 0.64 * tall, height=0.22 * tall))
            image = _show(strip, drawn[None, :, feature], scale, look, "auto")
            strip.spines[:].set_visible(False)
            if not number:
                _draw_scale(sheet, box, image, scale)
    left_out = f", {len(shown)} of {lines.shape[1]} features" * (len(shown) < lines.shape[1])
    sheet.text(left, box.top + box.height + 0.12, f"time: 0 to {len(lines) - 1}{left_out}", 7, color=FAINT)


_NAMES = 1.4
"""Inches left of a series for the names of its features."""


def draw_attention(sheet: Sheet, box: Box, values: Array, tokens: Sequence[str] = ()) -> None:
    """Draws the weights [queries, keys] of a head; an axis that has all ``tokens`` has their texts, as many as fit."""
    place = Box(box.left + _TOKEN, box.top, box.width - _TOKEN, box.height - _TOKEN)
    scale = _Range(_UNSIGNED, 0.0, float(np.max(values[np.isfinite(values)], initial=0)) or 1.0)
    axes = sheet.axes(place)
    _draw_scale(sheet, box._replace(height=place.height), _show(axes, values, scale, USUAL, "auto"), scale)
    for axis, count, rotation in ((axes.yaxis, values.shape[0], 0), (axes.xaxis, values.shape[1], 90)):
        shown = range(0, count, -(-count // _MOST_TOKENS))
        names = [tokens[at] if len(tokens) == count else str(at) for at in shown]
        axis.set_ticks(list(shown), [fitted(name, _TOKEN - 0.06, 5.5, "normal", keep="start") for name in names])
        axis.set_tick_params(length=0, pad=1.5, labelsize=5.5, labelrotation=rotation)


_TOKEN = 0.5
"""Inches left of and below the weights of a head for the texts of tokens."""

_MOST_TOKENS = 24
"""The most tokens that have their texts along an axis."""


_FAILURE_LINES, _FAILURE_LETTERS = 9, 34


def draw_failure(failure: AttributionError, sheet: Sheet, box: Box, _: Array) -> None:
    """Writes why there is no attribution."""
    lines = textwrap.wrap(f"failed: {failure.reason}: {failure.message}", _FAILURE_LETTERS, max_lines=_FAILURE_LINES)
    for number, line in enumerate(lines):
        sheet.text(box.left, box.top + 0.18 * (number + 1), harmless(line), 7.5, color=WRONG)


def _sides(heights: Array) -> list[tuple[str, Array]]:
    """Returns the parts above and below 0 with their colours, which are those of pictures too."""
    if not (heights < 0).any():
        return [(_MAGNITUDE, heights)]
    return [(_POSITIVE, np.maximum(heights, 0)), (_NEGATIVE, np.minimum(heights, 0))]


def _style_bars(axes: Axes, count: int, width: float) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.spines[:].set_visible(False)
    axes.axhline(0, color=RULE, linewidth=0.8, zorder=0)
    axes.set_xlim(-0.6, count - 0.4)
    axes.margins(y=0.12)
    axes.yaxis.tick_right()
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))
    axes.xaxis.set_major_locator(MaxNLocator(round(_LABELS_PER_INCH * width), integer=True, min_n_ticks=1))
    axes.tick_params(length=0)


def _number(value: float) -> str:
    """Returns ``value`` in at most about seven characters: ``-2.5e-5`` for -0.000025."""
    if value == 0 or 0.01 <= abs(value) < 1000:
        return f"{value:.3g}" if abs(value) >= 10 else f"{value:.2g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _highlight(axes: Axes, heights: Array, index: int, name: str, share: str, width: float) -> None:
    height = float(heights[index])
    axes.bar([index], [height], color=INK, width=max(0.8, heights.size / 400))  # visible among many bars too
    text = f"{fitted(name, 0.6 * width, 9, 'bold', keep='start')} · {share}"
    axes.use_sticky_edges = False  # leaves room above 0, where all values are below it
    axes.annotate(
        text,
        (index, max(height, 0.0)),
        (0, 3),
        textcoords="offset points",
        ha=_side((index + 0.6) / heights.size * width, width, length(text, 9, "bold")),
        fontsize=9,
        weight="bold",
    )


def _side(place: float, width: float, needed: float) -> Literal["left", "center", "right"]:
    """Returns the alignment with which a text of width ``needed`` at ``place`` stays within ``width``."""
    return "left" if place < needed / 2 else "right" if width - place < needed / 2 else "center"


def _draw_array(
    sheet: Sheet,
    box: Box,
    values: Array,
    summary: str,
    summarise: Callable[[Array], Array],
    look: Look = USUAL,
    under: Ground | None = None,
) -> None:
    """Draws an array by its shape: a vector as bars, channels as tiles, a long table with totals of rows."""
    flat = without_ones(values)
    if flat.size == 0:
        sheet.text(box.left, box.top + box.height / 2, "empty", 9, color=FAINT)
    elif flat.ndim < 2:
        draw_bars(sheet, box, flat)
    elif flat.ndim > 2:
        picture = _mosaic(flat.reshape(-1, *flat.shape[-2:]))
        _draw_picture(sheet, box, picture, _range(picture, look), look)
    elif layout_of(flat) == "picture":
        _draw_picture(sheet, box, flat, _range(flat, look), look, under)
    else:
        _draw_table(sheet, box, flat, summary, summarise(flat), look)


def _finite(values: Array) -> Array:
    """Returns ``values`` with 0 in place of NaN and infinities."""
    return np.where(np.isfinite(values), values, 0.0)


def _mosaic(channels: Array) -> Array:
    """Returns the first of the channels [channels, height, width] as tiles of one picture, with NaN between them."""
    shown = channels[:MAX_CHANNELS]
    count, height, width = shown.shape
    across = math.ceil(math.sqrt(count))
    down = math.ceil(count / across)
    gap = max(1, round(0.06 * max(height, width)))
    picture = np.full((down * (height + gap) - gap, across * (width + gap) - gap), np.nan)
    for index, tile in enumerate(shown):
        top, left = index // across * (height + gap), index % across * (width + gap)
        picture[top : top + height, left : left + width] = tile
    return picture


def _draw_picture(
    sheet: Sheet, box: Box, picture: Array, scale: _Range, look: Look = USUAL, under: Ground | None = None
) -> None:
    """Draws an array in colours over ``under``, which shows through where numbers are small, or as ``blend`` says."""
    axes = sheet.axes(box)
    if under is not None and (look.blend is not None or under.takes(picture.shape)):
        sides = under.sides
        aspect = sides[0] / sides[1]
        coloured = look.blend is not None or under.image.ndim < 3
        below = under.image if coloured else under.image.mean(axis=0).astype(under.image.dtype)
        axes.imshow(_levels(below), "gray", vmin=0, vmax=1, extent=_WHOLE, aspect=aspect)
        by_size = _MOST_OPAQUE * np.clip(np.abs(_finite(picture)) / scale.high, 0, 1)
        smooth = "bilinear" if COARSE * picture.shape[-1] < sides[1] else None
        shown = axes.imshow(
            picture, scale.colours, vmin=scale.low, vmax=scale.high, extent=_WHOLE, aspect=aspect,
            alpha=by_size if look.blend is None else look.blend, interpolation=look.interpolation or smooth,
        )  # fmt: skip
        _draw_scale(sheet, box, shown, scale)
        _bare(axes)
    else:
        _draw_scale(sheet, box, _show(axes, picture, scale, look), scale)


_MOST_OPAQUE = 0.9
"""How far the strongest colours cover the image below them."""

_WHOLE = (0.0, 1.0, 1.0, 0.0)
"""The place of a picture that covers another one, whatever their sizes: left, right, bottom, top."""


def _levels(image: Array) -> Array:
    """Returns an image with the colours on the last axis: bytes as they are, other numbers from the smallest, 0, to the
    largest, 1."""
    low, high = ends(image)
    levels = _finite((image.astype(np.float64) - low) / ((high - low) or 1))
    return np.moveaxis(levels, 0, -1) if levels.ndim == 3 else levels


def _draw_table(sheet: Sheet, box: Box, table: Array, summary: str, totals: Array, look: Look) -> None:
    """Draws a table [rows, columns] stretched to the box, and ``totals`` [rows] as bars beside it."""
    axes = sheet.axes(box._replace(width=0.76 * box.width))
    scale = _range(table, look)
    _draw_scale(sheet, box, _show(axes, table, scale, look, "auto"), scale)
    bars = sheet.axes(box._replace(left=box.left + 0.8 * box.width, width=0.2 * box.width))
    for colour, side in _sides(_finite(totals)):
        bars.barh(np.arange(totals.size), side, color=colour)
    bars.set_ylim(axes.get_ylim())
    bars.set_xlabel(summary, fontsize=7, color=FAINT)
    _bare(bars)


def _show(
    axes: Axes, picture: Array, scale: _Range, look: Look, aspect: Literal["equal", "auto"] = "equal"
) -> AxesImage:
    import matplotlib

    colours = matplotlib.colormaps[scale.colours].with_extremes(bad=_BETWEEN)
    return _bare(axes).imshow(
        picture, colours, vmin=scale.low, vmax=scale.high, aspect=aspect, interpolation=look.interpolation
    )


def _draw_scale(sheet: Sheet, box: Box, shown: AxesImage, scale: _Range) -> None:
    """Draws the colour scale right of ``box``."""
    bar = sheet.axes(Box(box.left + box.width + 0.06, box.top, 0.07, box.height))
    ticks = [scale.low, (scale.low + scale.high) / 2, scale.high]
    extend: Literal["both", "max", "neither"] = "neither" if not scale.clipped else "both" if scale.low < 0 else "max"
    colours = sheet.figure.colorbar(shown, cax=bar, ticks=ticks, extend=extend)
    colours.ax.set_yticklabels([_number(tick) for tick in ticks])
    colours.ax.tick_params(length=0, pad=2)
    colours.outline.set_visible(False)


def _bare(axes: Axes) -> Axes:
    """Removes the ticks of ``axes``."""
    axes.set_xticks([])
    axes.set_yticks([])
    return axes
