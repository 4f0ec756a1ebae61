"""What hooks saw, and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from cutaway.requests import Point
from cutaway.results import InspectResult
from cutaway.tables.cells import first_values, heading, module_text, shape_text, statistics
from cutaway.tensors import Array


class CapturedTensor(NamedTuple):
    """One captured tensor and where it was seen."""

    module: str
    point: Point
    call: int
    path: str
    array: Array
    positions: Array | None
    """Where along the axis each element was, of what was reduced to its largest."""


def captured(result: InspectResult) -> Iterator[CapturedTensor]:
    """Every tensor that hooks brought back, in order."""
    for module, capture in result.captures.items():
        for index, call in enumerate(capture.calls):
            for point, leaves in call.leaves.items():
                for path, array in leaves.items():
                    positions = call.positions.get(point, {}).get(path)
                    yield CapturedTensor(module, point, index, path, array, positions)


def capture_table(result: InspectResult) -> Table:
    """What the hooks saw: a tensor a row, with its path within the call behind the point.

    Of what was reduced to its largest elements, also where the first of them were.
    """
    seen = list(captured(result))
    call = ["call"] if any(each.call for each in seen) else []
    where = ["positions"] if any(each.positions is not None for each in seen) else []
    names = ["module", "point", *call, "tensor", *where]
    folds = ("module", "point", "positions")
    table = heading("Captures", *names, "min", "mean", "max", numbers=3, folds=folds)
    for each in seen:
        number = [str(each.call)] if call else []
        first = [Text("") if each.positions is None else first_values(each.positions)] if where else []
        place = Text(module_text(each.module)), Text(each.point.value + each.path)
        table.add_row(*place, *number, shape_text(each.array), *first, *statistics(each.array))
    return table


def gradient_table(result: InspectResult) -> Table:
    """The target's gradient at each input."""
    return _arrays("Input gradients", "input", result.input_gradients)


def parameter_table(result: InspectResult) -> Table:
    """The gradient of all examples' targets together at each parameter."""
    return _arrays("Parameter gradients", "parameter", result.parameter_gradients)


def _arrays(title: str, what: str, arrays: Mapping[str, Array]) -> Table:
    table = heading(title, what, "tensor", "min", "mean", "max", numbers=3, folds=(what,))
    for name, array in arrays.items():
        table.add_row(Text(name), shape_text(array), *statistics(array))
    return table
