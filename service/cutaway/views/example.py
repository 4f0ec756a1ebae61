"""One example of a result as HTML: its inputs, predictions and attributions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape

import numpy as np

from cutaway.contract.errors import CutawayError, Reason
from cutaway.contract.results import AttributionResult, InspectResult
from cutaway.contract.results.explanations import outcome_of_row
from cutaway.contract.results.summary import class_name, harmless, outline
from cutaway.contract.tensors import Array
from cutaway.views.pictures import (
    SentInput,
    as_image,
    class_labels,
    coarse,
    colour,
    heat,
    photograph,
    short_number,
    strongest,
)

# HTML elements, in which every text is escaped and made harmless.

_LONGEST = 600  # characters of one text


class Markup(str):
    """Text that is HTML already, or a data URL."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str) -> Markup:
    """Returns one element: a child that is no `Markup` is text. An attribute ``class_`` is the class."""
    words = "".join(f' {name.rstrip("_")}="{_text(value)}"' for name, value in attributes.items())
    return Markup(f"<{tag}{words}>" + ("" if tag == "img" else f"{joined(children)}</{tag}>"))


def joined(children: Iterable[str]) -> Markup:
    """Returns the children one after the other, those that are text escaped."""
    return Markup("".join(map(_text, children)))


def _text(text: str) -> str:
    return text if isinstance(text, Markup) else escape(harmless(text, _LONGEST))


# Arrays of one example as HTML: bars, heat maps over the input, coloured tokens.

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
    """Draws the largest magnitudes of a vector as bars on both sides of 0, and writes the sum of the others.

    Args:
        names: the names of the values.
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
    """Draws a bar for every name and value; with ``best``, only those bars have a colour."""
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

    Without Pillow, a text takes the place of the picture.
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
    """Writes the shape and the range of an array that no picture fits."""
    finite = values[np.isfinite(values)]
    extent = f": {short_number(float(finite.min()))} to {short_number(float(finite.max()))}" if finite.size else ""
    return element("p", f"{outline(values)}{extent}", class_="note")


def _same_ratio(first: Sequence[int], second: Sequence[int]) -> bool:
    return abs(first[0] * second[1] - second[0] * first[1]) <= _SAME_SHAPE * second[0] * first[1]


_TEXT = 500  # characters of an input text
_OUTPUTS = 3


@dataclass(frozen=True)
class Picture:
    """An input that is a picture, which several heat maps lie on.

    Attributes:
        url: the data URL.
        sides: height and width of the input, in pixels.
    """

    url: str
    sides: tuple[int, int]

    @property
    def style(self) -> str:
        """The CSS class with the picture as background; it is unique in a notebook."""
        return f"p{sha256(self.url.encode()).hexdigest()[:12]}"


def input_panel(name: str, sent: SentInput) -> tuple[Markup | None, Picture | None]:
    """Draws an input that is a picture or a text; returns also the picture. A vector is drawn with its attributions."""
    if sent.values is None:
        return _tile(name, element("p", harmless(sent.text, _TEXT))), None
    image = as_image(sent.values)
    if image is None:
        return None, None
    try:
        picture = Picture(photograph(image), (image.shape[-2], image.shape[-1]))
    except CutawayError as failure:
        if failure.reason != Reason.PACKAGE_MISSING:
            raise
        return _tile(name, element("p", str(failure), class_="note")), None
    return _tile(name, element("span", class_=f"picture {picture.style}", style=picture_size(picture.sides))), picture


def prediction_panels(result: InspectResult, row: int, labels: Sequence[str]) -> Iterator[Markup]:
    """Draws the outputs of one example; the predicted class is read from the first."""
    passes = (("", result.predictions, result.classes), ("unedited ", result.unedited, result.unedited_classes))
    for prefix, outputs, classes in passes:
        for number, (name, array) in enumerate(list(outputs.items())[:_OUTPUTS]):
            values = _row(array, row)
            predicted = classes[row] if not number and row < len(classes) else None
            title = f"{prefix}{harmless(name)}"
            if predicted is not None:
                title += f": {class_name(predicted)}, {predicted.probability:.1%}"
            if values.ndim == 1 and values.size:
                known = class_labels(result, labels) if predicted is not None else {}
                texts = [known.get(index) or str(index) for index in range(values.size)]
                yield _tile(title, output_bars(texts, values, predicted.index if predicted is not None else None))
            else:
                yield _tile(title, numbers(values))


def attribution_panel(
    attribution: AttributionResult,
    row: int,
    inputs: Mapping[str, SentInput],
    grounds: Mapping[str, Picture],
    feature_names: Mapping[str, Sequence[str]],
) -> Markup:
    """Draws one attribution of one example with its verdict: tokens, a heat map over the input, or bars."""
    title = harmless(attribution.method) + (f" at {harmless(attribution.layer)}" if attribution.layer else "")
    if attribution.error is not None:
        return _tile(_titled(title, "FAILED"), element("p", attribution.error.message, class_="note"))
    verdict = outcome_of_row(attribution.checks, row).verdict.value if attribution.checks else "NOT CHECKED"
    tokens = attribution.tokens
    if tokens is not None:
        values = _row(tokens.values, row)
        texts = tokens.texts[row] if row < len(tokens.texts) else list(map(str, tokens.ids[row].tolist()))
        return _tile(_titled(title, verdict), token_colours(texts, values))
    panels = [
        _panel(name, _row(array, row), inputs, grounds, feature_names)
        for name, array in list(attribution.values.items())[:_OUTPUTS]
    ]
    return _tile(_titled(title, verdict), *panels)


def _panel(
    name: str,
    values: Array,
    inputs: Mapping[str, SentInput],
    grounds: Mapping[str, Picture],
    feature_names: Mapping[str, Sequence[str]],
) -> Markup:
    if values.ndim == 1 and values.size:
        known = feature_names.get(name, ())
        features = known if len(known) == values.size else [str(index) for index in range(values.size)]
        sent = inputs[name].values if name in inputs else None
        notes = [] if sent is None or sent.shape != values.shape else list(map(short_number, sent.tolist()))
        return signed_bars(features, values, notes)
    picture = _as_map(values)
    if picture is None:
        return numbers(values)
    ground = grounds.get(name) or next(iter(grounds.values()), None)
    return heat_map(picture, ground.style if ground else "", ground.sides if ground else None)


def _as_map(values: Array) -> Array | None:
    """Returns the sum over the channels of an array that is a picture; None for another."""
    while values.ndim > 3 and values.shape[0] == 1:
        values = values[0]
    if values.ndim not in (2, 3) or min(values.shape[-2:]) < 2:
        return None
    return values if values.ndim == 2 else np.asarray(values.sum(axis=0))


def _row(array: Array, row: int) -> Array:
    """Returns one example of ``array`` in a data type that numpy computes with."""
    return np.asarray(array[row] if array.ndim and row < len(array) else array, np.float64)


def _titled(title: str, verdict: str) -> Markup:
    return element("span", title, badge(verdict))


def _tile(title: str, *panels: Markup) -> Markup:
    return element("div", element("div", title, class_="name"), *panels, class_="tile")
