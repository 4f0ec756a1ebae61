"""What the model predicts, and what is explained of it."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cutaway.results import InspectResult
from cutaway.tables.cells import MOST_ROWS, count_rest, first_values, heading, number, percent, printable, shape_text


def prediction_table(result: InspectResult) -> RenderableType:
    """The predicted classes, an example a row; for a model without classes, or with several outputs, these.

    What edits changed is shown as ``before -> after``, where the unedited model was asked, too.
    """
    if not result.classes:
        return _outputs(result, "Prediction")
    if len(result.predictions) <= 1:
        return _classes(result)
    return Group(_classes(result), "", _outputs(result, "Outputs"))


def _classes(result: InspectResult) -> Table:
    labelled = any(row.label for row in result.classes)
    explained = {} if has_targets(result) else {"target": result.targets, "target's value": result.target_values}
    shown = {name: values for name, values in explained.items() if values is not None}
    names = ["example", "class", *(["label"] if labelled else []), "probability", *shown]
    table = heading("Prediction", *names, numbers=1 + len(shown), folds=("label",))
    unedited = result.unedited_classes or result.classes
    for index, (before, after) in enumerate(zip(unedited, result.classes[:MOST_ROWS])):
        label = [_changed(before.label, after.label, "bold")] if labelled else []
        probability = [percent(before.probability)] if result.unedited_classes else []
        about = [number(printable(values)[index].item()) for values in shown.values()]
        table.add_row(
            str(index),
            _changed(str(before.index), str(after.index)),
            *label,
            Text(" -> ").join([*probability, percent(after.probability)]),
            *about,
        )
    count_rest(table, len(result.classes))
    return table


def _changed(before: str, after: str, style: str = "") -> Text:
    """``cat -> dog``; ``dog`` alone where it was no other before."""
    return Text.assemble("" if before == after else f"{before} -> ", (after, style))


def _outputs(result: InspectResult, title: str) -> Table:
    both = {"first values": result.predictions, "unedited": result.unedited}
    shown = {column: outputs for column, outputs in both.items() if outputs}
    table = heading(title, "output", "tensor", *shown, folds=("output", *shown))
    for name, array in {**result.unedited, **result.predictions}.items():
        values = [first_values(outputs[name]) if name in outputs else "" for outputs in shown.values()]
        table.add_row(Text(name), shape_text(array), *values)
    return table


def has_targets(result: InspectResult) -> bool:
    """Whether targets need a table of their own: several an example, or no predicted classes to stand beside."""
    values = result.target_values
    return values is not None and (values.ndim > 1 or not result.classes)


def target_table(result: InspectResult) -> Table:
    """What gradients and attributions are about: the class, where it is one, and the scalar, a target a row."""
    values = np.zeros(0) if result.target_values is None else result.target_values
    classes = None if result.targets is None else result.targets.reshape(-1)
    per_example = values.shape[1] if values.ndim > 1 else 1
    names = ["example", *(["class"] if classes is not None else []), "value"]
    table = heading("Targets", *names, numbers=len(names) - 1)
    for index, value in enumerate(values.reshape(-1)[:MOST_ROWS]):
        about = [] if classes is None else [str(classes[index])]
        table.add_row(str(index // per_example), *about, number(float(value)))
    count_rest(table, values.size)
    return table
