"""What is shown of a result: one panel for each thing that came back, in sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from cutaway.errors import Reason, error
from cutaway.plots.pictures import Drawing, draw_bars, draw_image, draw_shares, draw_state
from cutaway.results import AttributionResult, ClassPrediction, InspectResult, Verdict
from cutaway.tensors import Array

COLUMNS = 4
"""How many panels stand side by side."""

_WORST_FIRST = (Verdict.DISAGREES, Verdict.INCONCLUSIVE, Verdict.AGREES, Verdict.NOT_APPLICABLE)


@dataclass(frozen=True)
class Panel:
    """One picture.

    Attributes:
        title: what it is of.
        detail: which part of that, and its shape.
        values: float64, of one example.
        draw: how.
        verdict: what the check said, if there was one.
        span: how many columns it takes.
    """

    title: str
    detail: str
    values: Array
    draw: Drawing
    verdict: Verdict | None = None
    span: int = 1


class Section(NamedTuple):
    """Panels that belong together."""

    heading: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Example:
    """One row of a batch of ``rows``."""

    row: int
    rows: int

    @classmethod
    def of(cls, result: InspectResult, row: int) -> Example:
        """The row of that number in ``result``.

        Raises:
            InvalidArgument: ``INVALID_VALUE``, where there is none.
        """
        rows = len(next(iter(result.predictions.values()), ()))
        if not 0 <= row < rows:
            raise error(Reason.INVALID_VALUE, f"the batch has the rows 0 to {rows - 1}, not {row}", "row")
        return cls(row, rows)

    def part(self, array: Array) -> Array:
        """Its part of ``array``; all of an array whose first axis is not the batch. float64 holds every type."""
        batched = array.ndim > 0 and len(array) == self.rows
        return np.asarray(array[self.row] if batched else array, dtype=np.float64)


def sections(result: InspectResult, inputs: Mapping[str, Array], example: Example) -> Iterator[Section]:
    """Everything that there is to see of one example."""
    yield Section("Input and prediction", _forward(result, inputs, example))
    yield Section("At the input", [*_gradients(result, example), *_explanations(result, example, layers=False)])
    yield Section("At layers", list(_explanations(result, example, layers=True)))
    yield Section("Captured", list(_captures(result, example)))


def _forward(result: InspectResult, inputs: Mapping[str, Array], example: Example) -> list[Panel]:
    """What went in, where that is an image, and what came out; a lone vector takes the rest of the line."""
    images = [panel for name, array in inputs.items() for panel in _images(name, example.part(array))]
    span = COLUMNS - len(images) if len(result.predictions) == 1 and len(images) < COLUMNS else 1
    predicted = [result.classes[example.row] if result.classes else None]  # read from the first output
    outputs = [
        _output(name, example.part(array), span, predicted.pop() if predicted else None)
        for name, array in result.predictions.items()
    ]
    return images + outputs


def _images(name: str, values: Array) -> Iterator[Panel]:
    if values.ndim == 2 or (values.ndim == 3 and values.shape[0] in (1, 3)):
        yield Panel(name, f"input · {_shape(values)}", values, draw_image)


def _output(name: str, values: Array, span: int, predicted: ClassPrediction | None) -> Panel:
    detail = f"prediction · {_shape(values)}"
    if values.ndim > 1:
        return Panel(name, detail, values, draw_state)
    return Panel(name, detail, values, partial(draw_bars, predicted=predicted), span=span)


def _gradients(result: InspectResult, example: Example) -> Iterator[Panel]:
    for name, array in result.input_gradients.items():
        values = example.part(array)
        yield Panel("Gradient", f"{name} · {_shape(values)}", _without_colours(values), draw_shares)


def _explanations(result: InspectResult, example: Example, *, layers: bool) -> Iterator[Panel]:
    for found in result.attributions:
        if bool(found.layer) is layers:
            for name, array in found.values.items():
                values = example.part(array)
                shown = values if layers else _without_colours(values)
                draw = draw_state if found.method == "LayerActivation" else draw_shares
                yield Panel(found.method, f"{name} · {_shape(values)}", shown, draw, _verdict(found))


def _without_colours(values: Array) -> Array:
    """What is said of a pixel: the sum of what is said of its red, green and blue."""
    summed: Array = values.sum(axis=0) if values.ndim == 3 and values.shape[0] == 3 else values
    return summed


def _verdict(found: AttributionResult) -> Verdict | None:
    reached = {check.verdict for check in found.checks}
    return next((verdict for verdict in _WORST_FIRST if verdict in reached), None)


def _captures(result: InspectResult, example: Example) -> Iterator[Panel]:
    for name, module in result.captures.items():
        for index, call in enumerate(module.calls):
            title = name if len(module.calls) == 1 else f"{name}, call {index}"
            for point, leaves in call.leaves.items():
                for path, array in leaves.items():
                    values = example.part(array)
                    which = f"{point.value} {path}" if path.isidentifier() else f"{point.value}{path}"
                    yield Panel(title, f"{which} · {_shape(values)}", values, draw_state)


def _shape(values: Array) -> str:
    return str(list(values.shape))
