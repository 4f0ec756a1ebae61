"""One example of a result as HTML: its inputs, predictions and attributions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from cutaway.display.class_labels import class_labels
from cutaway.display.markup import Markup, element
from cutaway.display.panels import (
    badge,
    heat_map,
    numbers,
    output_bars,
    picture_size,
    signed_bars,
    token_colours,
)
from cutaway.display.pictures import as_image, photograph, short_number
from cutaway.display.sent_inputs import SentInput
from cutaway.errors import CutawayError, Reason
from cutaway.results import AttributionResult, InspectResult
from cutaway.results.explanations import outcome_of_row
from cutaway.results.summary import class_name
from cutaway.results.text import harmless
from cutaway.schema.tensors import Array

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
        """The CSS class that has the picture as background: no other picture of a notebook has the same."""
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
