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
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from cutaway.contract.errors import Reason, error
from cutaway.contract.requests import InspectRequest, Point
from cutaway.contract.results import ClassPrediction, InspectResult, Verdict
from cutaway.contract.results.arrays import CLASSES, Place, by_name, captures, entries, examples_first
from cutaway.contract.results.explanations import outcome_of_row
from cutaway.contract.results.summary import (
    batch_size,
    class_labels,
    class_name,
    evidence_lines,
    first,
    harmless,
    predicted_class,
    without_layer,
    worst_first,
)
from cutaway.contract.tensors import Array
from cutaway.views.drawings import (
    MAX_CHANNELS,
    MOST_BARS,
    Drawing,
    draw_attention,
    draw_bars,
    draw_failure,
    draw_features,
    draw_image,
    draw_series,
    draw_with_norms,
    draw_with_sums,
)
from cutaway.views.pictures import DECODED, USUAL, Ground, Look, element_weights, layout_of, short_number, without_ones
from cutaway.views.sheets import COLUMNS, MAX_PANELS, Panel, draw_sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


DOTS_PER_INCH = 150
"""The resolution of figures in files."""

_WIDE = 2  # columns for the lines of a series, and tokens


def figure(
    result: InspectResult,
    inputs: Mapping[str, Array] | None = None,
    row: int = 0,
    look: Look = USUAL,
    request: InspectRequest | None = None,
) -> Figure:
    """Draws one example of ``result``.

    Args:
        result: the reply to a request.
        inputs: the request's tensors by input name, batch first; images among them are drawn beside the prediction.
        row: the example's index in the batch.
        look: how attributions are drawn.
        request: what was asked: it tells heads that were chosen, and whether an adapter decoded the inputs.

    Raises:
        InvalidArgument: ``INVALID_VALUE`` if the batch has no such row, or there is no such look.
    """
    look.check()
    rows = rows_with(result, row)
    example = _Example(examples_first(result), row, rows, request or InspectRequest(""), look)
    drawn = draw_sheet(_title(example), _facts(example), _sections(example, inputs or {}), _words(example))
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
class _Example:
    """The row ``row`` of a result with ``rows`` rows, its request, and how attributions are drawn."""

    result: InspectResult
    row: int
    rows: int
    request: InspectRequest
    look: Look

    @cached_property
    def weights(self) -> dict[str, Array]:
        """The weights of the elements of inputs, by which all panels order their bars."""
        found = [(each.values, self.look) for each in self.result.attributions if not each.at_layer]
        shown = [(self.result.input_gradients, USUAL), *found]
        return element_weights([{name: look.of(self.part(own)) for name, own in each.items()} for each, look in shown])

    def weight(self, name: str, values: Array) -> Array:
        """Returns the weights of the elements of ``values``, which are about the input ``name``."""
        known = self.weights.get(name)
        return known if known is not None and known.shape == values.shape else np.abs(values)

    def sent(self, array: Array) -> Array:
        """Returns this row of an input: pictures of bytes as they are, else as `part`."""
        return array[self.row] if array.dtype == np.uint8 and array.ndim == 4 else self.part(array)

    def part(self, array: Array) -> Array:
        """Returns this row of ``array`` as float64, which holds every type; all of an array without a batch axis."""
        batched = array.ndim > 0 and len(array) == self.rows
        return np.asarray(array[self.row] if batched else array, dtype=np.float64)


def _sections(example: _Example, inputs: Mapping[str, Array]) -> dict[str, list[Panel]]:
    """Returns the panels below each heading; a heading may have none."""
    sent = {name: example.sent(array) for name, array in inputs.items()}
    return {
        "Input and prediction": _forward(example, sent),
        "At the input": [*_gradients(example, sent), *_attributions(example, sent, layers=False)],
        "At layers": list(_attributions(example, sent, layers=True)),
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
    room = (COLUMNS - sum(panel.span for panel in images)) // max(1, len(shown))
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
            yield _panel(name, title, values, _bars(example, values, predicted), span=span)


def _bars(example: _Example, values: Array, predicted: ClassPrediction | None) -> Drawing:
    """Returns the drawing of an output as bars, with the names of its classes if it is the one they are read from."""
    if predicted is None:
        return draw_bars
    known = class_labels(example.result)
    names = [harmless(known.get(index, ""), 24) or str(index) for index in range(values.size)] if known else ()
    return partial(draw_bars, highlighted=(predicted.index, *predicted_class(example.result, predicted)), names=names)


def _gradients(example: _Example, sent: Mapping[str, Array]) -> Iterator[Panel]:
    result = example.result
    targets = None if result.targets is None else result.targets[example.row]
    for name, array in result.input_gradients.items():
        values = example.part(array)
        by_target = {"": values}
        if targets is not None and np.ndim(targets) and len(targets) == len(values):
            parts = zip(targets.tolist(), values)
            by_target = {f" · {class_name(result, target)}": part for target, part in parts}
        for target, part in by_target.items():
            yield _at_input(example, "Gradient", (name, target), part, sent, USUAL)


def _attributions(example: _Example, sent: Mapping[str, Array], *, layers: bool) -> Iterator[Panel]:
    """Yields the attributions of layers, or those of inputs; the worst first where the section has no room for all."""
    attributions, look = worst_first(example.result, MAX_PANELS), example.look
    counts = Counter((attribution.method, attribution.layer) for _, attribution in attributions)
    for title, attribution in attributions:
        method, targets = attribution.method, attribution.targets
        heading = without_layer(title, attribution)  # which is in the second line
        if attribution.at_layer is layers:
            several = counts[method, attribution.layer] > 1
            target = ""
            if several and targets is not None:
                target = f" · {class_name(example.result, int(targets[example.row]))}"
            if (failure := attribution.error) is not None:
                yield Panel(heading, attribution.layer, np.empty(0), partial(draw_failure, failure))
            verdict = outcome_of_row(attribution.checks, example.row).verdict if attribution.checks else None
            parts = {name: example.part(array) for name, array in attribution.values.items()}
            joined = {} if layers else {name: part for name, part in parts.items() if _is_named(example, name, part)}
            for name, values in parts.items():
                if name in joined:
                    if name == next(iter(joined)):
                        yield _features(example, heading, target, joined, sent, look, verdict)
                elif not layers:
                    yield _at_input(example, heading, (name, target), values, sent, look, verdict)
                elif (tokens := attribution.tokens) is not None:
                    texts = [harmless(text, 40) for text in tokens.row_texts(example.row, tokens.input or name)]
                    draw: Drawing = partial(draw_features, names=texts, look=look)
                    sums, against = example.part(tokens.values), tokens.against(example.row)
                    detail = f"{against or name}{target}"
                    yield _panel(heading, detail, sums, draw, most=MOST_BARS, verdict=verdict, span=_WIDE)
                else:
                    draw = partial(draw_with_sums, look=look, under=_image_in(example, sent))
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
    draw = partial(draw_with_sums, look=look, under=_image_in(example, {name: own} if own is not None else sent))
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
    bars: list[tuple[float, str, str, float]] = []  # with the weight that orders them
    for name, values in parts.items():
        own, names = sent.get(name), example.result.feature_names.get(name, (name,))
        known = own is not None and own.shape == values.shape
        notes = [f" = {short_number(each)}" for each in own.flat] if known and own is not None else [""] * values.size
        bars += zip(example.weight(name, values).flat, names, notes, values.flat)
    _, ordered, notes_of, joined = zip(*sorted(bars, key=lambda bar: -bar[0]))
    draw = partial(draw_features, names=ordered, look=look, notes=notes_of)
    return _panel(title, ", ".join(parts) + target, np.array(joined), draw, most=MOST_BARS, verdict=verdict)


def _image_in(example: _Example, sent: Mapping[str, Array]) -> Ground | None:
    """Returns the first image among the inputs, [height, width] or [3, height, width]."""
    images = ((name, without_ones(values)) for name, values in sent.items() if layout_of(values, ()) == "picture")
    decoded = bool(example.request.raw)
    return next((Ground(image, decoded and name == DECODED) for name, image in images), None)


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
    chosen = next((each.heads for each in example.request.captures if fnmatchcase(place.module, each.op)), ())
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
            known = class_labels(example.result)
            return [harmless(known.get(token, ""), 24) or str(token) for token in array[example.row].tolist()]
    return []


_DRAWN = {
    *(*CLASSES, "output", "unedited", "targets", "target_values", "capture", "gradient", "parameter_gradient"),
    *("attribution", "token_attribution", "token_ids", "baseline_token_ids"),
    *("convergence_delta", "value_at_input", "value_at_baseline"),  # which each attribution has
}
_TOLD = ("attack", "counterfactual", "concept", "helpful", "harmful", "agreement")  # the first parts of kinds
_MAX_WORDS, _MAX_NAMES = 12, 8


def _words(example: _Example) -> list[str]:
    """Returns lines about what has no panel: texts, changes, evidence, metrics, and the names of other arrays."""
    result, row = example.result, example.row
    lines = [f"text: {text}" for text in result.texts[row : row + 1]]
    lines += [*evidence_lines(result, row), *evidence_lines(result), *_metric_lines(result, row)]
    others = [
        name
        for name, entry in by_name(entries(result)).items()
        if entry.kind not in _DRAWN and not entry.kind.startswith((*_TOLD, "metric"))
    ]
    not_drawn = [f"not drawn: {', '.join(first(map(harmless, others), _MAX_NAMES, len(others)))}"] * bool(others)
    return [*(harmless(line, 160) for line in first(lines, _MAX_WORDS, len(lines))), *not_drawn]


def _metric_lines(result: InspectResult, row: int) -> Iterator[str]:
    for title, attribution in zip(result.titles(), result.attributions):
        told = [f"{each.name} {each.values[row]:.3g}" for each in attribution.metrics]
        if told:
            yield f"{title}: {', '.join(told)}"


_MAX_TARGETS = 3  # of an example, in the header


def _title(example: _Example) -> str:
    """Returns the model, and the class that it predicts."""
    result, provenance = example.result, example.result.provenance
    title = f"{provenance.model} {provenance.version}".strip() or "result"
    if not result.classes:
        return title
    name, share = predicted_class(result, result.classes[example.row])
    return f"{title}   →   {name}  ({share})"


def _facts(example: _Example) -> list[str]:
    """Returns what was explained, and what the result rests on."""
    provenance = example.result.provenance
    facts = {
        "example": f"{example.row + 1} of {example.rows}",
        "weights": provenance.weights_sha256[:8],
        "torch": provenance.torch_version,
        "Captum": provenance.captum_version,
    }
    return [*_targets(example), *(f"{name} {fact}" for name, fact in facts.items() if fact)]


def _targets(example: _Example) -> Iterator[str]:
    result, parts = example.result, []
    if result.targets is not None:
        targets = np.atleast_1d(result.targets[example.row])
        are_classes = bool(result.classes or class_labels(result))
        shown = [class_name(result, index) if are_classes else f"element {index}" for index in targets.tolist()]
        parts += [_list(shown)]
    if result.target_values is not None:
        values = np.atleast_1d(result.target_values[example.row]).tolist()
        parts += [f"value {_list([f'{value:.4g}' for value in values])}"]
    if parts:
        yield f"explained: {', '.join(parts)}"


def _list(shown: Sequence[str]) -> str:
    """Returns ``cat``, or ``cat, dog, emu, …`` for a target with several."""
    return ", ".join([*shown[:_MAX_TARGETS], *["…"] * (len(shown) > _MAX_TARGETS)])
