"""One example of a result as a figure: prediction, attributions with their verdicts, captures and gradients.

For ``cutaway inspect --plot`` and for notebooks. A figure has panels for the tensors of the result, in sections.
Matplotlib is imported when a figure is drawn, not before.
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cutaway.contract.errors import Reason, error
from cutaway.contract.requests import Capture, Point
from cutaway.contract.results import ClassPrediction, InspectResult, Verdict
from cutaway.contract.results.arrays import Place, captures, examples_first
from cutaway.contract.results.explanations import outcome_of_row
from cutaway.contract.results.summary import batch_size, harmless, without_layer, worst_first
from cutaway.contract.tensors import Array
from cutaway.views.drawings import (
    FAINT,
    MAX_CHANNELS,
    MOST_BARS,
    SCALE,
    STYLE,
    WRONG,
    Box,
    Drawing,
    Sheet,
    draw_attention,
    draw_bars,
    draw_failure,
    draw_features,
    draw_image,
    draw_series,
    draw_with_norms,
    draw_with_sums,
    fitted,
    length,
)
from cutaway.views.pictures import USUAL, Look, class_labels, layout_of, short_number, without_ones

if TYPE_CHECKING:
    from matplotlib.figure import Figure


DOTS_PER_INCH = 150
"""The resolution of figures in files."""

_COLUMNS = 4  # panels side by side
_WIDE = 2  # of them take the lines of a series, and tokens


def figure(
    result: InspectResult,
    inputs: Mapping[str, Array] | None = None,
    row: int = 0,
    look: Look = USUAL,
    labels: Sequence[str] = (),
    captures: Sequence[Capture] = (),
) -> Figure:
    """Draws one example of ``result``.

    Args:
        result: the reply to a request.
        inputs: the request's tensors by input name, batch first; images among them are drawn beside the prediction.
        row: the example's index in the batch.
        look: how attributions are drawn.
        labels: of all classes, where they are known.
        captures: those of the request, which tell heads that were chosen.

    Raises:
        InvalidArgument: ``INVALID_VALUE`` if the batch has no such row, or there is no such look.
    """
    look.check()
    rows = rows_with(result, row)
    known = class_labels(result, labels) if result.classes or labels else {}
    example = _Example(examples_first(result), row, rows, known, captures)
    drawn = _draw(example, _sections(example, inputs or {}, look))
    drawn.__dict__["_repr_png_"] = partial(_png, drawn)  # a notebook shows it, also without %matplotlib inline
    return drawn


def rows_with(result: InspectResult, row: Any) -> int:
    """Returns the number of rows of ``result``; raises ``INVALID_VALUE`` if ``row`` is none of them."""
    rows = batch_size(result) or 1
    if not isinstance(row, int) or not 0 <= row < rows:
        raise error(Reason.INVALID_VALUE, f"the batch has the rows 0 to {rows - 1}, not {row!r:.80}", "row")
    return rows


def _png(drawn: Figure) -> bytes:
    file = io.BytesIO()
    drawn.savefig(file, format="png")
    return file.getvalue()


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


class _Example(NamedTuple):
    """The row ``row`` of a result with ``rows`` rows, the labels that are known by class, and what was to capture."""

    result: InspectResult
    row: int
    rows: int
    labels: Mapping[int, str]
    asked: Sequence[Capture]

    def class_text(self, index: int) -> str:
        """Returns the label of a class, or its index."""
        return harmless(self.labels.get(index, ""), 24) or str(index)

    def part(self, array: Array) -> Array:
        """Returns this row of ``array`` as float64, which holds every type; all of an array without a batch axis."""
        batched = array.ndim > 0 and len(array) == self.rows
        return np.asarray(array[self.row] if batched else array, dtype=np.float64)


def _sections(example: _Example, inputs: Mapping[str, Array], look: Look) -> dict[str, list[Panel]]:
    """Returns the panels below each heading; a heading may have none."""
    sent = {name: example.part(array) for name, array in inputs.items()}
    return {
        "Input and prediction": _forward(example, sent),
        "At the input": [*_gradients(example, sent), *_attributions(example, sent, look, layers=False)],
        "At layers": list(_attributions(example, sent, look, layers=True)),
        "Captured": list(_captures(example)),
        "At parameters, for all examples": [
            _panel(name, "gradient", np.asarray(array, np.float64), draw_with_sums)
            for name, array in example.result.parameter_gradients.items()
        ],
    }


def _panel(
    title: str, detail: str, values: Array, draw: Drawing, *, sum_colours: bool = False, most: int = 0, **more: Any
) -> Panel:
    """Returns a panel with the shape of ``values`` behind ``detail``, and how many of its parts are shown.

    Args:
        title: the first line of the caption.
        detail: the second line.
        values: of one example.
        draw: draws them.
        sum_colours: whether the sum of three colours is shown.
        most: how many elements of a vector are drawn; 0 is all.
        more: of `Panel`.
    """
    summed, planes = sum_colours and values.ndim == 3 and values.shape[0] == 3, without_ones(values)
    if planes.ndim > 2 and not summed:
        most = MAX_CHANNELS
    count = math.prod(planes.shape[:-2]) if planes.ndim > 2 else planes.size
    part = f", {most} of {count}" if 0 < most < count else ""
    return Panel(
        title, f"{detail} · {list(values.shape)}{part}", values.sum(axis=0) if summed else values, draw, **more
    )


def _forward(example: _Example, sent: Mapping[str, Array]) -> list[Panel]:
    """Returns inputs that are images or series, then the outputs; a single vector takes the rest of the line."""
    result = example.result
    images = []
    for name, values in sent.items():
        names = result.feature_names.get(name, ())
        layout = layout_of(values, names)
        if layout == "series":
            images += [_panel(name, "input", values, partial(draw_series, names=names), span=_WIDE)]
        elif layout == "picture":
            images += [_panel(name, "input", values, draw_image)]
    passes = [
        ("prediction", result.predictions, result.classes),
        ("unedited", result.unedited, result.unedited_classes),
    ]
    shown = [(name, outputs, classes) for name, outputs, classes in passes if outputs and not result.generated]
    room = (_COLUMNS - sum(panel.span for panel in images)) // max(1, len(shown))
    span = room if room > 0 and all(len(outputs) == 1 for _, outputs, _ in shown) else 1
    return images + [panel for shown_pass in shown for panel in _outputs(example, span, *shown_pass)]


def _outputs(
    example: _Example, span: int, title: str, outputs: Mapping[str, Array], classes: Sequence[ClassPrediction]
) -> Iterator[Panel]:
    for number, (name, array) in enumerate(outputs.items()):
        values = example.part(array)
        predicted = classes[example.row] if classes and not number else None  # read from the first output
        if values.ndim > 1:
            yield _panel(name, title, values, draw_with_norms)
        else:
            yield _panel(name, title, values, partial(draw_bars, predicted=predicted), span=span)


def _gradients(example: _Example, sent: Mapping[str, Array]) -> Iterator[Panel]:
    targets = None if example.result.targets is None else example.result.targets[example.row]
    for name, array in example.result.input_gradients.items():
        values = example.part(array)
        by_target = {"": values}
        if targets is not None and np.ndim(targets) and len(targets) == len(values):
            parts = zip(targets.tolist(), values)
            by_target = {f" · class {example.class_text(target)}": part for target, part in parts}
        for target, part in by_target.items():
            yield _at_input(example, "Gradient", (name, target), part, sent, USUAL)


def _attributions(example: _Example, sent: Mapping[str, Array], look: Look, *, layers: bool) -> Iterator[Panel]:
    """Yields the attributions of layers, or those of inputs; the worst first where the section has no room for all."""
    attributions = worst_first(example.result, _MAX_PANELS)
    counts = Counter((attribution.method, attribution.layer) for _, attribution in attributions)
    for title, attribution in attributions:
        method, targets = attribution.method, attribution.targets
        heading = without_layer(title, attribution)  # which is in the second line
        if bool(attribution.layer) is layers:
            several = counts[method, attribution.layer] > 1
            target = ""
            if several and targets is not None:
                target = f" · class {example.class_text(int(targets[example.row]))}"
            if (failure := attribution.error) is not None:
                yield Panel(heading, attribution.layer, np.empty(0), partial(draw_failure, failure))
            verdict = outcome_of_row(attribution.checks, example.row).verdict if attribution.checks else None
            parts = {name: example.part(array) for name, array in attribution.values.items()}
            joined = {} if layers else {name: part for name, part in parts.items() if _is_named(example, name, part)}
            if joined:
                yield _features(example, heading, target, joined, sent, look, verdict)
            for name, values in parts.items():
                if name in joined:
                    continue
                if not layers:
                    yield _at_input(example, heading, (name, target), values, sent, look, verdict)
                elif (tokens := attribution.tokens) is not None:
                    texts = [harmless(text, 40) for text in tokens.row_texts(example.row, tokens.input or name)]
                    draw: Drawing = partial(draw_features, names=texts, look=look, in_order=True)
                    sums, against = example.part(tokens.values), tokens.against(example.row)
                    detail = f"{against or name}{target}"
                    yield _panel(heading, detail, sums, draw, most=MOST_BARS, verdict=verdict, span=_WIDE)
                else:
                    draw = partial(draw_with_sums, look=look, under=_image_in(sent))
                    draw = draw_with_norms if method == "LayerActivation" else draw
                    yield _panel(heading, f"{name}{target}", values, draw, verdict=verdict)


def _at_input(
    example: _Example,
    title: str,
    about: tuple[str, str],
    values: Array,
    sent: Mapping[str, Array],
    look: Look,
    verdict: Verdict | None = None,
) -> Panel:
    """Returns the panel of what is about an input, and as it: lines over time, named bars beside what was sent, or a
    picture over the picture.

    Args:
        example: the row.
        title: the first line of the caption.
        about: the input, and the target in words.
        values: of the input's shape.
        sent: the inputs.
        look: how values are drawn.
        verdict: of the row.
    """
    name = about[0]
    names, own = example.result.feature_names.get(name, ()), sent.get(name)
    layout, detail = layout_of(values, names), "".join(about)
    beside = own if own is not None and own.shape == values.shape else None
    if layout == "series":
        draw: Drawing = partial(draw_series, names=names, look=look, sent=beside)
        return _panel(title, detail, values, draw, verdict=verdict, span=_WIDE)
    if _is_named(example, name, values):
        return _features(example, title, about[1], {name: values}, sent, look, verdict)
    draw = partial(draw_with_sums, look=look, under=_image_in({name: own} if own is not None else sent))
    return _panel(title, detail, values, draw, sum_colours=True, verdict=verdict)


def _is_named(example: _Example, name: str, values: Array) -> bool:
    """Returns whether what is about an input is a number, or a vector whose elements have names."""
    layout = layout_of(values)
    return layout == "number" or (layout == "bars" and len(example.result.feature_names.get(name, ())) == values.size)


def _features(
    example: _Example,
    title: str,
    target: str,
    parts: Mapping[str, Array],
    sent: Mapping[str, Array],
    look: Look,
    verdict: Verdict | None,
) -> Panel:
    """Returns a panel with the bars of what is about inputs that `_is_named`, all of one scale."""
    names: list[str] = []
    notes: list[str] = []
    for name, values in parts.items():
        own = sent.get(name)
        names += example.result.feature_names.get(name, (name,))
        known = own is not None and own.shape == values.shape
        notes += [f" = {short_number(each)}" for each in own.flat] if known and own is not None else [""] * values.size
    draw = partial(draw_features, names=names, look=look, notes=notes)
    joined = np.concatenate([values.reshape(-1) for values in parts.values()])
    return _panel(title, ", ".join(parts) + target, joined, draw, most=MOST_BARS, verdict=verdict)


def _image_in(sent: Mapping[str, Array]) -> Array | None:
    """Returns the first image among the inputs, [height, width] or [3, height, width]."""
    images = (without_ones(values) for values in sent.values() if layout_of(values, ()) == "picture")
    return next(images, None)


def _captures(example: _Example) -> Iterator[Panel]:
    for place, array in captures(example.result):
        module, is_attention, _ = place.module.partition(":attention_weights#")
        if is_attention and example.part(array).ndim == 3:
            yield from _heads(example, place, module, example.part(array))
            continue
        title = (place.module or "(the model)") + f", call {place.call}" * (place.calls > 1)
        path = f" {place.path}" if place.path.isidentifier() else place.path
        yield _panel(title, f"{place.point}{path}", example.part(array), draw_with_norms)


def _heads(example: _Example, place: Place, module: str, weights: Array) -> Iterator[Panel]:
    """Yields a panel for each head, with tokens on both axes where a result tells them; of many heads the first."""
    chosen = next((each.heads for each in example.asked if fnmatchcase(place.module, each.op)), ())
    numbers = chosen if len(chosen) == len(weights) else range(len(weights))
    call = f", call {place.call}" * (place.calls > 1)
    for number, values in list(zip(numbers, weights))[:MAX_CHANNELS]:
        draw = partial(draw_attention, tokens=_tokens(example))
        yield _panel(f"head {number}", f"{module}{call} · queries x keys", values, draw)


def _tokens(example: _Example) -> list[str]:
    """Returns the tokens that the model read: those of an attribution, or of ids captured at its input."""
    for attribution in example.result.attributions:
        if attribution.tokens is not None:
            return [harmless(text, 24) for text in attribution.tokens.row_texts(example.row)]
    for place, array in captures(example.result):
        if not place.module and place.point is Point.INPUT and array.dtype.kind in "iu" and array.ndim == 2:
            return [example.class_text(token) for token in array[example.row].tolist()]
    return []


# The layout of a sheet, in inches: a header, then the sections with their panels in lines.
_PICTURE = 1.9
_CELL = _PICTURE + SCALE + 0.14
_GAP = 0.14
_MARGIN = 0.4
_HEADER = 1.0
_HEADING = 0.38
_CAPTION = 0.42
_FOOT = 0.32  # below a picture: tick labels
_WIDTH = 2 * _MARGIN + _COLUMNS * _CELL - _GAP

_MAX_PANELS = 24  # in a section
_MAX_TARGETS = 3  # of an example, in the header
_VERDICTS = {
    Verdict.AGREES: ("✓ agrees", "#1a7f37"),
    Verdict.DISAGREES: ("✗ disagrees", WRONG),
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


def _draw(example: _Example, sections: Mapping[str, Sequence[Panel]]) -> Figure:
    """Draws a sheet that is as long as its sections need."""
    import matplotlib
    from matplotlib.figure import Figure

    lines = [line for heading, panels in sections.items() for line in _lines(heading, panels)]
    height = _HEADER + sum(line.height for line in lines) + _MARGIN / 2
    with matplotlib.rc_context(STYLE):
        sheet = Sheet(Figure(figsize=(_WIDTH, height)), _WIDTH, height)
        _draw_header(sheet, example)
        top = _HEADER
        for line in lines:
            _draw_line(sheet, line, top)
            top += line.height
    return sheet.figure


def _lines(heading: str, panels: Sequence[Panel]) -> Iterator[_Line]:
    """Yields the panels of a section in lines of `_COLUMNS`. If there are too many panels, shows the first, which are
    the worst, if they have verdicts; else evenly spaced ones."""
    if len(panels) > _MAX_PANELS:
        judged = any(panel.verdict is not None or not panel.values.size for panel in panels)
        heading += f": {_MAX_PANELS} of {len(panels)}, {'the worst first' if judged else 'from the first to the last'}"
        depths = [number * (len(panels) - 1) // (_MAX_PANELS - 1) for number in range(_MAX_PANELS)]
        panels = panels[:_MAX_PANELS] if judged else [panels[number] for number in depths]
    line: list[Panel] = []
    for panel in panels:
        if sum(each.span for each in (*line, panel)) > _COLUMNS:
            yield _Line(heading, line)
            heading, line = "", []
        line.append(panel)
    if line:
        yield _Line(heading, line)


def _draw_header(sheet: Sheet, example: _Example) -> None:
    provenance = example.result.provenance
    title = f"{provenance.model} {provenance.version}".strip() or "result"
    sheet.text(_MARGIN, 0.5, f"{title}{_predicted(example)}", 16, weight="bold")
    facts = {
        "example": f"{example.row + 1} of {example.rows}",
        "weights": provenance.weights_sha256[:8],
        "torch": provenance.torch_version,
        "Captum": provenance.captum_version,
    }
    parts = [*_targets(example), *(f"{name} {fact}" for name, fact in facts.items() if fact)]
    sheet.text(_MARGIN, 0.76, "   ·   ".join(parts), 8.5, color=FAINT)


def _predicted(example: _Example) -> str:
    if not example.result.classes:
        return ""
    predicted = example.result.classes[example.row]
    label = fitted(predicted.label or f"class {predicted.index}", _WIDTH / 2, 16, "bold", keep="start")
    return f"   →   {label}  ({predicted.probability:.1%})"


def _targets(example: _Example) -> Iterator[str]:
    result = example.result
    parts = []
    if result.targets is not None:
        shown = [
            example.class_text(index) for index in np.atleast_1d(result.targets[example.row])[:_MAX_TARGETS].tolist()
        ]
        parts += [
            _list(
                "class" if result.classes or example.labels else "element", shown, np.size(result.targets[example.row])
            )
        ]
    if result.target_values is not None:
        values = np.atleast_1d(result.target_values[example.row])
        parts += [_list("value", [f"{value:.4g}" for value in values[:_MAX_TARGETS].tolist()], values.size)]
    if parts:
        yield f"explained: {', '.join(parts)}"


def _list(name: str, shown: Sequence[str], count: int) -> str:
    """Returns ``class 3``, or ``class 3 5 7 …`` for a target with several."""
    return " ".join([name, *shown, *["…"] * (count > len(shown))])


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
