"""Tables of predictions, targets, captured tensors and gradients."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cutaway.contract.results import InspectResult
from cutaway.contract.results.arrays import POSITIONS, captures, entries
from cutaway.contract.tensors import Array
from cutaway.views.tables.cells import (
    MAX_ROWS,
    count_hidden_rows,
    empty_table,
    first_values,
    module_text,
    number_text,
    percent_text,
    printable,
    shape_text,
    statistics,
)


def prediction_table(result: InspectResult) -> RenderableType:
    """Returns a table of the predicted classes; of the outputs, for a model without classes or with several outputs.

    If the result has the prediction of the unedited model too, a change is written as ``before -> after``.
    """
    if not result.classes:
        return _outputs(result, "Prediction")
    if len(result.predictions) <= 1:
        return _classes(result)
    return Group(_classes(result), "", _outputs(result, "Outputs"))


def _classes(result: InspectResult) -> Table:
    show_label = any(prediction.label for prediction in result.classes)
    targets = {"target": result.targets, "target's value": result.target_values}
    shown = {} if needs_target_table(result) else {name: array for name, array in targets.items() if array is not None}
    explained = result.explained_rows
    show_explained = explained is not None
    names = ["example", "class", *["label"] * show_label, "probability", *shown, *["explained"] * show_explained]
    table = empty_table("Prediction", *names, numbers=1 + len(shown), folds=("label",))
    unedited = result.unedited_classes or result.classes
    for index, (before, after) in enumerate(zip(unedited, result.classes[:MAX_ROWS])):
        probability = [percent_text(before.probability)] if result.unedited_classes else []
        table.add_row(
            str(index),
            _change(str(before.index), str(after.index)),
            *[_change(before.label, after.label, "bold")] * show_label,
            Text(" -> ").join([*probability, percent_text(after.probability)]),
            *(number_text(printable(array)[index].item()) for array in shown.values()),
            *([] if explained is None else ["yes" if explained[index] else "no"]),
        )
    count_hidden_rows(table, len(result.classes))
    return table


def _change(before: str, after: str, style: str = "") -> Text:
    """Returns ``cat -> dog``, or ``dog`` if it did not change."""
    return Text.assemble("" if before == after else f"{before} -> ", (after, style))


def _outputs(result: InspectResult, title: str) -> Table:
    columns = {"first values": result.predictions, "unedited": result.unedited}
    shown = {column: outputs for column, outputs in columns.items() if outputs}
    table = empty_table(title, "output", "tensor", *shown, folds=("output", *shown))
    for name, array in {**result.unedited, **result.predictions}.items():
        values = [first_values(outputs[name]) if name in outputs else "" for outputs in shown.values()]
        table.add_row(Text(name), shape_text(array), *values)
    return table


def needs_target_table(result: InspectResult) -> bool:
    """Returns whether targets need their own table: several per example, or no predicted classes beside them."""
    values = result.target_values
    return values is not None and (values.ndim > 1 or not result.classes)


def target_table(result: InspectResult) -> Table:
    """Returns a table of the targets: the class, if the target is one, and the value of the target scalar."""
    values = np.zeros(0) if result.target_values is None else result.target_values
    classes = None if result.targets is None else result.targets.reshape(-1)
    per_example = values.shape[1] if values.ndim > 1 else 1
    names = ["example", *(["class"] if classes is not None else []), "value"]
    table = empty_table("Targets", *names, numbers=len(names) - 1)
    for index, value in enumerate(values.reshape(-1)[:MAX_ROWS]):
        class_cells = [] if classes is None else [str(classes[index])]
        table.add_row(str(index // per_example), *class_cells, number_text(float(value)))
    count_hidden_rows(table, values.size)
    return table


def capture_table(result: InspectResult) -> Table:
    """Returns a table of the captured tensors, with their paths behind the points.

    After a reduction to the largest elements, the row also has the positions of the first of them.
    """
    positions = {entry.place: entry.array for entry in entries(result) if entry.kind == POSITIONS}
    show_call = any(place.call for place, _ in captures(result))
    names = ["module", "point", *["call"] * show_call, "tensor", *["positions"] * bool(positions)]
    folds = ("module", "point", "positions")
    table = empty_table("Captures", *names, "min", "mean", "max", numbers=3, folds=folds)
    for place, array in captures(result):
        cells = [Text(module_text(place.module)), Text(place.point.value + place.path)]
        cells += [Text(str(place.call))] * show_call
        first = first_values(positions[place]) if place in positions else Text("")
        table.add_row(*cells, shape_text(array), *[first] * bool(positions), *statistics(array))
    return table


def gradient_table(result: InspectResult) -> Table:
    """Returns a table of the target's gradients at the inputs."""
    return _arrays("Input gradients", "input", result.input_gradients)


def parameter_table(result: InspectResult) -> Table:
    """Returns a table of the parameters: the gradients of the sum of all examples' targets."""
    return _arrays("Parameter gradients", "parameter", result.parameter_gradients)


def _arrays(title: str, kind: str, arrays: Mapping[str, Array]) -> Table:
    table = empty_table(title, kind, "tensor", "min", "mean", "max", numbers=3, folds=(kind,))
    for name, array in arrays.items():
        table.add_row(Text(name), shape_text(array), *statistics(array))
    return table
