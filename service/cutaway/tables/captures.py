"""Captured tensors and gradients."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from cutaway.results import InspectResult
from cutaway.results.captured import captured_tensors
from cutaway.schema.tensors import Array
from cutaway.tables.cells import empty_table, first_values, module_text, shape_text, statistics


def capture_table(result: InspectResult) -> Table:
    """Returns a row for each captured tensor, with its path behind the point.

    After a reduction to the largest elements, the row also has the positions of the first of them.
    """
    tensors = list(captured_tensors(result))
    show_call = any(tensor.call for tensor in tensors)
    show_positions = any(tensor.positions is not None for tensor in tensors)
    names = ["module", "point", *["call"] * show_call, "tensor", *["positions"] * show_positions]
    folds = ("module", "point", "positions")
    table = empty_table("Captures", *names, "min", "mean", "max", numbers=3, folds=folds)
    for tensor in tensors:
        cells = [Text(module_text(tensor.module)), Text(tensor.point.value + tensor.path)]
        cells += [Text(str(tensor.call))] * show_call
        positions = Text("") if tensor.positions is None else first_values(tensor.positions)
        table.add_row(*cells, shape_text(tensor.array), *[positions] * show_positions, *statistics(tensor.array))
    return table


def gradient_table(result: InspectResult) -> Table:
    """Returns a row for the target's gradient at each input."""
    return _arrays("Input gradients", "input", result.input_gradients)


def parameter_table(result: InspectResult) -> Table:
    """Returns a row for each parameter: the gradient of the sum of all examples' targets."""
    return _arrays("Parameter gradients", "parameter", result.parameter_gradients)


def _arrays(title: str, kind: str, arrays: Mapping[str, Array]) -> Table:
    table = empty_table(title, kind, "tensor", "min", "mean", "max", numbers=3, folds=(kind,))
    for name, array in arrays.items():
        table.add_row(Text(name), shape_text(array), *statistics(array))
    return table
