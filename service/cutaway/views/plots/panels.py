"""The content of a figure: panels for the tensors of the result, in sections, and their layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cutaway.contract.errors import Reason, error
from cutaway.contract.results import ClassPrediction, InspectResult, Verdict
from cutaway.contract.results.arrays import captures
from cutaway.contract.results.summary import batch_size
from cutaway.contract.tensors import Array
from cutaway.views.plots.pictures import (
    FAINT,
    SCALE,
    STYLE,
    Box,
    Drawing,
    Sheet,
    draw_bars,
    draw_features,
    draw_image,
    draw_with_norms,
    draw_with_sums,
    fitted,
    length,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


COLUMNS = 4
"""The number of panels side by side."""


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


class PanelSection(NamedTuple):
    """Panels below one heading."""

    heading: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class ExampleRow:
    """One row of a batch with ``rows`` rows."""

    row: int
    rows: int

    @classmethod
    def of(cls, result: InspectResult, row: int) -> ExampleRow:
        """Returns row ``row`` of the batch of ``result``.

        Raises:
            InvalidArgument: ``INVALID_VALUE`` if there is no such row.
        """
        rows = batch_size(result) or 1
        if not 0 <= row < rows:
            raise error(Reason.INVALID_VALUE, f"the batch has the rows 0 to {rows - 1}, not {row}", "row")
        return cls(row, rows)

    def part(self, array: Array) -> Array:
        """Returns this row of ``array`` as float64, which holds every type; all of an array without a batch axis."""
        batched = array.ndim > 0 and len(array) == self.rows
        return np.asarray(array[self.row] if batched else array, dtype=np.float64)


def sections(result: InspectResult, inputs: Mapping[str, Array], example: ExampleRow) -> Iterator[PanelSection]:
    """Yields every section of the figure, also those without panels."""
    yield PanelSection("Input and prediction", _forward(result, inputs, example))
    yield PanelSection("At the input", [*_gradients(result, example), *_attributions(result, example, layers=False)])
    yield PanelSection("At layers", list(_attributions(result, example, layers=True)))
    yield PanelSection("Captured", list(_captures(result, example)))
    yield PanelSection("At parameters, for all examples", list(_parameters(result)))


def _forward(result: InspectResult, inputs: Mapping[str, Array], example: ExampleRow) -> list[Panel]:
    """Returns inputs that are images, then the outputs; a single vector takes the rest of the line."""
    images = [panel for name, array in inputs.items() for panel in _images(name, example.part(array))]
    passes = [
        ("prediction", result.predictions, result.classes),
        ("unedited", result.unedited, result.unedited_classes),
    ]
    shown = [(name, outputs, classes) for name, outputs, classes in passes if outputs]
    room = (COLUMNS - len(images)) // max(1, len(shown))
    span = room if room > 0 and all(len(outputs) == 1 for _, outputs, _ in shown) else 1
    return images + [panel for shown_pass in shown for panel in _outputs(*shown_pass, example, span)]


def _outputs(
    title: str, outputs: Mapping[str, Array], classes: Sequence[ClassPrediction], example: ExampleRow, span: int
) -> Iterator[Panel]:
    predicted = [classes[example.row] if classes else None]  # read from the first output
    for name, array in outputs.items():
        yield _output(name, title, example.part(array), span, predicted.pop() if predicted else None)


def _images(name: str, values: Array) -> Iterator[Panel]:
    if values.ndim == 2 or (values.ndim == 3 and values.shape[0] in (1, 3)):
        yield Panel(name, f"input · {_shape(values)}", values, draw_image)


def _output(name: str, title: str, values: Array, span: int, predicted: ClassPrediction | None) -> Panel:
    detail = f"{title} · {_shape(values)}"
    if values.ndim > 1:
        return Panel(name, detail, values, draw_with_norms)
    return Panel(name, detail, values, partial(draw_bars, predicted=predicted), span=span)


def _gradients(result: InspectResult, example: ExampleRow) -> Iterator[Panel]:
    for name, array in result.input_gradients.items():
        values = example.part(array)
        for target, part in _by_target(result, example, values):
            detail = f"{name}{target} · {_shape(part)}"
            yield Panel("Gradient", detail, _sum_of_colours(part), _drawing(result, name, part))


def _by_target(result: InspectResult, example: ExampleRow, gradient: Array) -> Iterator[tuple[str, Array]]:
    """Yields the captions of the example's targets with their parts of ``gradient``."""
    targets = None if result.targets is None else result.targets[example.row]
    if targets is None or np.ndim(targets) == 0 or len(targets) != len(gradient):
        yield "", gradient
    else:
        yield from zip((f" · class {target}" for target in targets), gradient)


def _attributions(result: InspectResult, example: ExampleRow, *, layers: bool) -> Iterator[Panel]:
    """Yields the attributions of layers, or those of inputs."""
    counts = Counter((attribution.method, attribution.layer) for attribution in result.attributions)
    for attribution in result.attributions:
        method, targets = attribution.method, attribution.targets
        if bool(attribution.layer) is layers:
            several = counts[method, attribution.layer] > 1
            target = f" · class {targets[example.row]}" if several and targets is not None else ""
            for name, array in attribution.values.items():
                values = example.part(array)
                shown = values if layers else _sum_of_colours(values)
                draw = draw_with_norms if method == "LayerActivation" else _drawing(result, name, values)
                yield Panel(method, f"{name}{target} · {_shape(values)}", shown, draw, attribution.verdict)


def _drawing(result: InspectResult, name: str, values: Array) -> Drawing:
    """Returns how values for an input, or a layer, are drawn: with names, if they are a vector and have any."""
    names = result.feature_names.get(name, ())
    if values.ndim == 1 and len(names) == len(values):
        return partial(draw_features, names=names)
    return draw_with_sums


def _sum_of_colours(values: Array) -> Array:
    """Returns the sum over red, green and blue; other arrays as they are."""
    summed: Array = values.sum(axis=0) if values.ndim == 3 and values.shape[0] == 3 else values
    return summed


def _captures(result: InspectResult, example: ExampleRow) -> Iterator[Panel]:
    for place, array in captures(result):
        title = place.module if place.calls == 1 else f"{place.module}, call {place.call}"
        path = f" {place.path}" if place.path.isidentifier() else place.path
        values = example.part(array)
        yield Panel(title, f"{place.point}{path} · {_shape(values)}", values, draw_with_norms)


def _parameters(result: InspectResult) -> Iterator[Panel]:
    for name, array in result.parameter_gradients.items():
        values = np.asarray(array, dtype=np.float64)
        yield Panel(name, f"gradient · {_shape(values)}", values, draw_with_sums)


def _shape(values: Array) -> str:
    return str(list(values.shape))


# The layout of a sheet, in inches: a header, then the sections with their panels in lines.
_PICTURE = 1.9
_CELL = _PICTURE + SCALE + 0.14
_GAP = 0.14
_MARGIN = 0.4
_HEADER = 1.0
_HEADING = 0.38
_CAPTION = 0.42
_FOOT = 0.32  # below a picture: tick labels
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


def draw(result: InspectResult, example: ExampleRow, sections: Iterable[PanelSection]) -> Figure:
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


def _lines(section: PanelSection) -> Iterator[_Line]:
    shown = section.panels[:_MAX_PANELS]
    total = len(section.panels)
    heading = section.heading + ("" if len(shown) == total else f": the first {len(shown)} of {total}")
    panels = iter(shown)
    while line := list(islice(panels, COLUMNS)):
        yield _Line(heading, line)
        heading = ""


def _draw_header(sheet: Sheet, result: InspectResult, example: ExampleRow) -> None:
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


def _predicted(result: InspectResult, example: ExampleRow) -> str:
    if not result.classes:
        return ""
    predicted = result.classes[example.row]
    label = fitted(predicted.label or f"class {predicted.index}", _WIDTH / 2, 16, "bold", keep="start")
    return f"   →   {label}  ({predicted.probability:.1%})"


def _targets(result: InspectResult, example: ExampleRow) -> Iterator[str]:
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
