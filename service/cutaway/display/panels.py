"""Arrays of one example as HTML: bars, heat maps over the input, coloured tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cutaway.display.markup import Markup, element
from cutaway.display.pictures import coarse, colour, heat, short_number, strongest
from cutaway.errors import CutawayError, Reason
from cutaway.results.text import harmless, outline
from cutaway.schema.tensors import Array

_MAX_BARS = 10
_MAX_OUTPUTS = 6
_MAX_TOKENS = 160
_LABEL = 40
_SIDE = 150  # CSS pixels of a picture's width
_SAME_SHAPE = 0.05  # the relative difference of two pictures' ratios of sides up to which one fits on the other


def badge(verdict: str) -> Markup:
    """Returns a verdict on a ground of its colour."""
    return element(
        "span", verdict.replace("_", " "), class_=f"badge {verdict.lower().replace('_', '-').replace(' ', '-')}"
    )


def signed_bars(names: Sequence[str], values: Array, notes: Sequence[str] = ()) -> Markup:
    """Draws the largest magnitudes of a vector as bars on both sides of 0, and says what the others sum to.

    Args:
        names: a name for each value.
        values: [features].
        notes: what to add to the names, such as the values of the features.
    """
    shown = np.argsort(-np.abs(values), kind="stable")[:_MAX_BARS]
    rest = np.delete(values, shown)
    left_out = [f"… {rest.size:,} smaller sum to {short_number(float(rest.sum()))}"] if rest.size else []
    rows = [(names[index] + (f" = {notes[index]}" if notes else ""), float(values[index])) for index in shown.tolist()]
    return element("div", _bars(rows), *(element("p", text, class_="note") for text in left_out))


def output_bars(labels: Sequence[str], values: Array, best: int | None) -> Markup:
    """Draws the highest values of an output as bars; the predicted class has a colour of its own."""
    shown = np.argsort(-values, kind="stable")[:_MAX_OUTPUTS].tolist()
    if best is not None and best < values.size and best not in shown:
        shown[-1] = best
    rows = [(labels[index], float(values[index])) for index in shown]
    left_out = [element("p", f"… {values.size - len(shown):,} lower", class_="note")] * (values.size > len(shown))
    return element("div", _bars(rows, [index == best for index in shown]), *left_out)


def _bars(rows: Sequence[tuple[str, float]], best: Sequence[bool] | None = None) -> Markup:
    """Draws a bar for each name and value; with ``best``, the bars are neutral, except for those."""
    finite = [value if np.isfinite(value) else 0.0 for _, value in rows]
    low, high = min(0.0, *finite, 0.0), max(0.0, *finite, 0.0)
    span = (high - low) or 1.0
    cells: list[Markup] = []
    for index, ((name, value), length) in enumerate(zip(rows, finite)):
        kind = ("best" if best[index] else "") if best is not None else ("for" if length >= 0 else "against")
        left, width = (min(length, 0.0) - low) / span, abs(length) / span
        bar = element("b", class_=kind, style=f"left:{100 * left:.1f}%;width:{100 * width:.1f}%")
        cells += [element("span", harmless(name, _LABEL), title=harmless(name, 4 * _LABEL))]
        cells += [element("span", bar, class_="track"), element("span", short_number(value))]
    return element("div", *cells, class_="bars")


def token_colours(texts: Sequence[str], values: Array) -> Markup:
    """Draws tokens in the colours of their attributions, with the numbers below."""
    count = min(len(texts), values.size)
    shown = values[:count]
    scale = strongest(np.asarray(shown, np.float64))
    spans = [
        element("span", harmless(text, _LABEL), element("small", short_number(value)),
                style=f"background:{colour(value, scale)}")
        for text, value in zip(texts[:_MAX_TOKENS], shown.tolist())
    ]  # fmt: skip
    more = [f"… {count - _MAX_TOKENS:,} more tokens"] if count > _MAX_TOKENS else []
    total = element("p", f"sum {short_number(float(shown.sum()))}", *more, class_="note")
    return element("div", element("div", *spans, class_="tokens"), total)


def heat_map(values: Array, ground: str, ground_sides: tuple[int, int] | None) -> Markup:
    """Draws [height, width] as a heat map; over the input, whose CSS class is ``ground``, if their shapes fit.

    Without Pillow, says so.
    """
    fits = ground_sides is not None and _same_ratio(values.shape, ground_sides)
    try:
        small = coarse(values)
        picture = element("img", src=Markup(heat(small, strongest(small))), alt=f"heat map {outline(values)}")
    except CutawayError as failure:
        if failure.reason != Reason.PACKAGE_MISSING:
            raise
        return element("p", str(failure), class_="note")
    beneath = [element("i", class_=ground)] if fits else []
    return element("span", *beneath, picture, class_="picture blank", style=picture_size(values.shape))


def picture_size(sides: Sequence[int]) -> str:
    """Returns the CSS height of a picture of these sides [height, width], and its width if it is high."""
    height, width = sides[0] or 1, sides[1] or 1
    scale = min(_SIDE / width, 1.5 * _SIDE / height)
    return f"width:{max(width * scale, 2):.0f}px;height:{max(height * scale, 2):.0f}px"


def numbers(values: Array) -> Markup:
    """Says the shape and the range of an array that no picture fits."""
    finite = values[np.isfinite(values)]
    extent = f": {short_number(float(finite.min()))} to {short_number(float(finite.max()))}" if finite.size else ""
    return element("p", f"{outline(values)}{extent}", class_="note")


def _same_ratio(first: Sequence[int], second: Sequence[int]) -> bool:
    return abs(first[0] * second[1] - second[0] * first[1]) <= _SAME_SHAPE * second[0] * first[1]
