"""What is shown of a result: one panel for each thing that came back, in sections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from cutaway.errors import Reason, error
from cutaway.plots.pictures import Drawing, draw_bars, draw_image, draw_shares, draw_state
from cutaway.requests import Point
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
        rows = _rows(result)
        if not 0 <= row < rows:
            raise error(Reason.INVALID_VALUE, f"the batch has the rows 0 to {rows - 1}, not {row}", "row")
        return cls(row, rows)

    def part(self, array: Array) -> Array:
        """Its part of ``array``; all of an array whose first axis is not the batch. float64 holds every type."""
        batched = array.ndim > 0 and len(array) == self.rows
        return np.asarray(array[self.row] if batched else array, dtype=np.float64)


def _rows(result: InspectResult) -> int:
    """How long the batch is: as the first says that came back of it, where predictions were left out."""
    seen: list[Array] = [*result.predictions.values(), *result.unedited.values()]
    seen += [] if result.target_values is None else [result.target_values]
    seen += [array for answer in result.attributions for array in answer.values.values()]
    seen += result.input_gradients.values()
    seen += [each.array for each in _captured(result)]
    return next((len(array) for array in seen if array.ndim), 1)


def sections(result: InspectResult, inputs: Mapping[str, Array], example: Example) -> Iterator[Section]:
    """Everything that there is to see of one example."""
    yield Section("Input and prediction", _forward(result, inputs, example))
    yield Section("At the input", [*_gradients(result, example), *_explanations(result, example, layers=False)])
    yield Section("At layers", list(_explanations(result, example, layers=True)))
    yield Section("Captured", list(_captures(result, example)))
    yield Section("At parameters, of all examples", list(_parameters(result)))


def _forward(result: InspectResult, inputs: Mapping[str, Array], example: Example) -> list[Panel]:
    """What went in, where that is an image, and what came out; a lone vector takes the rest of the line."""
    images = [panel for name, array in inputs.items() for panel in _images(name, example.part(array))]
    edited = [
        ("prediction", result.predictions, result.classes),
        ("unedited", result.unedited, result.unedited_classes),
    ]
    shown = [each for each in edited if each[1]]
    room = (COLUMNS - len(images)) // max(1, len(shown))
    span = room if room > 0 and all(len(outputs) == 1 for _, outputs, _ in shown) else 1
    return images + [panel for each in shown for panel in _outputs(*each, example, span)]


def _outputs(
    what: str, outputs: Mapping[str, Array], classes: Sequence[ClassPrediction], example: Example, span: int
) -> Iterator[Panel]:
    predicted = [classes[example.row] if classes else None]  # read from the first output
    for name, array in outputs.items():
        yield _output(name, what, example.part(array), span, predicted.pop() if predicted else None)


def _images(name: str, values: Array) -> Iterator[Panel]:
    if values.ndim == 2 or (values.ndim == 3 and values.shape[0] in (1, 3)):
        yield Panel(name, f"input · {_shape(values)}", values, draw_image)


def _output(name: str, what: str, values: Array, span: int, predicted: ClassPrediction | None) -> Panel:
    detail = f"{what} · {_shape(values)}"
    if values.ndim > 1:
        return Panel(name, detail, values, draw_state)
    return Panel(name, detail, values, partial(draw_bars, predicted=predicted), span=span)


def _gradients(result: InspectResult, example: Example) -> Iterator[Panel]:
    for name, array in result.input_gradients.items():
        values = example.part(array)
        for about, part in _by_target(result, example, values):
            detail = f"{name}{about} · {_shape(part)}"
            yield Panel("Gradient", detail, _without_colours(part), draw_shares)


def _by_target(result: InspectResult, example: Example, gradient: Array) -> Iterator[tuple[str, Array]]:
    """``gradient``, in as many parts as the example has targets, and what each part is about."""
    targets = None if result.targets is None else result.targets[example.row]
    if targets is None or np.ndim(targets) == 0 or len(targets) != len(gradient):
        yield "", gradient
    else:
        yield from zip((f" · class {target}" for target in targets), gradient)


def _explanations(result: InspectResult, example: Example, *, layers: bool) -> Iterator[Panel]:
    asked = Counter((found.method, found.layer) for found in result.attributions)
    for found in result.attributions:
        if bool(found.layer) is layers:
            several = asked[found.method, found.layer] > 1
            about = f" · class {found.targets[example.row]}" if several and found.targets is not None else ""
            for name, array in found.values.items():
                values = example.part(array)
                shown = values if layers else _without_colours(values)
                draw = draw_state if found.method == "LayerActivation" else draw_shares
                yield Panel(found.method, f"{name}{about} · {_shape(values)}", shown, draw, _verdict(found))


def _without_colours(values: Array) -> Array:
    """What is said of a pixel: the sum of what is said of its red, green and blue."""
    summed: Array = values.sum(axis=0) if values.ndim == 3 and values.shape[0] == 3 else values
    return summed


def _verdict(found: AttributionResult) -> Verdict | None:
    reached = {check.verdict for check in found.checks}
    return next((verdict for verdict in _WORST_FIRST if verdict in reached), None)


def _captures(result: InspectResult, example: Example) -> Iterator[Panel]:
    for each in _captured(result):
        values = example.part(each.array)
        which = f"{each.point} {each.path}" if each.path.isidentifier() else f"{each.point}{each.path}"
        yield Panel(each.title, f"{which} · {_shape(values)}", values, draw_state)


class _Captured(NamedTuple):
    """One captured tensor, under its module's name and, of several, the call's number."""

    title: str
    point: Point
    path: str
    array: Array


def _captured(result: InspectResult) -> Iterator[_Captured]:
    for name, module in result.captures.items():
        for index, call in enumerate(module.calls):
            title = name if len(module.calls) == 1 else f"{name}, call {index}"
            for point, leaves in call.leaves.items():
                for path, array in leaves.items():
                    yield _Captured(title, point, path, array)


def _parameters(result: InspectResult) -> Iterator[Panel]:
    for name, array in result.parameter_gradients.items():
        values = np.asarray(array, dtype=np.float64)
        yield Panel(name, f"gradient · {_shape(values)}", values, draw_shares)


def _shape(values: Array) -> str:
    return str(list(values.shape))
