"""Results as tables for a terminal: rich renderables, for the command line and for any script.

    from rich.console import Console

    Console().print(tables.attribution_table(result))

Names that a model's author chose go into `Text`, never into markup: ``layers[0]`` must stay what it is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cutaway.requests import Point
from cutaway.results import AttributionResult, Check, InspectResult, Verdict
from cutaway.tensors import Array, dtype_name

VERDICT_STYLES = {
    Verdict.AGREES: "green",
    Verdict.DISAGREES: "bold red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.NOT_APPLICABLE: "dim",
}

_ROOT = "(the model)"
_MOST_ROWS = 20  # of a batch; the rest is counted
_MOST_VALUES = 4  # of a tensor that is shown by its first values


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


def module_text(name: str) -> str:
    """``name``, with a word for the module that is the whole model and has none."""
    return name or _ROOT


def shape_text(array: Array) -> str:
    """``float32[8, 10]``."""
    return f"{dtype_name(array)}[{', '.join(map(str, array.shape))}]"


def heading(title: str, *columns: str, numbers: int = 0, folds: Collection[str] = ()) -> Table:
    """An empty table in the style of all others.

    Args:
        title: what stands above it.
        columns: their names.
        numbers: how many columns, from the last, are set flush right.
        folds: columns that take several lines where the terminal is narrow.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, title=title)
    table.title_justify, table.title_style = "left", "bold"
    for index, column in enumerate(columns):
        right = index >= len(columns) - numbers
        table.add_column(column, justify="right" if right else "left", no_wrap=column not in folds, overflow="fold")
    return table


# Predictions


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
    for index, (before, after) in enumerate(zip(unedited, result.classes[:_MOST_ROWS])):
        label = [_changed(before.label, after.label, "bold")] if labelled else []
        probability = [_percent(before.probability)] if result.unedited_classes else []
        about = [_number(_printable(values)[index].item()) for values in shown.values()]
        table.add_row(
            str(index),
            _changed(str(before.index), str(after.index)),
            *label,
            Text(" -> ").join([*probability, _percent(after.probability)]),
            *about,
        )
    _count_rest(table, len(result.classes))
    return table


def _changed(before: str, after: str, style: str = "") -> Text:
    """``cat -> dog``; ``dog`` alone where it was no other before."""
    return Text.assemble("" if before == after else f"{before} -> ", (after, style))


def _count_rest(table: Table, rows: int) -> None:
    if rows > _MOST_ROWS:
        table.caption, table.caption_justify = f"and {rows - _MOST_ROWS} more", "left"


def _percent(probability: float) -> Text:
    return Text(f"{probability:.1%}", style="bold" if probability >= 0.5 else "")


def _outputs(result: InspectResult, title: str) -> Table:
    both = {"first values": result.predictions, "unedited": result.unedited}
    shown = {column: outputs for column, outputs in both.items() if outputs}
    table = heading(title, "output", "tensor", *shown, folds=("output", *shown))
    for name, array in {**result.unedited, **result.predictions}.items():
        values = [_first_values(outputs[name]) if name in outputs else "" for outputs in shown.values()]
        table.add_row(Text(name), shape_text(array), *values)
    return table


def _first_values(array: Array) -> Text:
    values = [_number(value) for value in _printable(array.reshape(-1)[:_MOST_VALUES]).tolist()]
    more = [Text("...")] if array.size > _MOST_VALUES else []
    return Text(" ").join([*values, *more])


# Targets


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
    for index, value in enumerate(values.reshape(-1)[:_MOST_ROWS]):
        about = [] if classes is None else [str(classes[index])]
        table.add_row(str(index // per_example), *about, _number(float(value)))
    _count_rest(table, values.size)
    return table


# Captures and gradients


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
        first = [Text("") if each.positions is None else _first_values(each.positions)] if where else []
        place = Text(module_text(each.module)), Text(each.point.value + each.path)
        table.add_row(*place, *number, shape_text(each.array), *first, *_statistics(each.array))
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
        table.add_row(Text(name), shape_text(array), *_statistics(array))
    return table


# Attributions


def attribution_table(result: InspectResult) -> Group:
    """Every attribution's values, and below them what the checks say."""
    several = explains_several(result)
    names = ["method", "of", "shape", *(["class"] if several else []), "min", "max", "delta"]
    table = heading("Attributions", *names, numbers=len(names) - 3, folds=("of", "class"))
    for answer in result.attributions:
        about = [Text("") if answer.targets is None else _first_values(answer.targets)] if several else []
        delta = "" if answer.convergence_delta is None else _number(float(np.abs(answer.convergence_delta).max()))
        for name, array in answer.values.items():
            low, _, high = _statistics(array)
            table.add_row(answer.method, Text(name), str(list(array.shape)), *about, low, high, delta)
    if not any(answer.checks for answer in result.attributions):
        return Group(table)
    return Group(table, "", _checks(result.attributions))


def explains_several(result: InspectResult) -> bool:
    """Whether something is explained more than once: then only the class tells attributions apart."""
    asked = [(answer.method, answer.layer) for answer in result.attributions]
    return len(set(asked)) < len(asked)


def _checks(answers: tuple[AttributionResult, ...]) -> Table:
    table = heading("Checks", "verdict", "method", "error (allowed)", "compared with", folds=("compared with",))
    for answer in answers:
        for check in answer.checks:
            table.add_row(verdict_text(check.verdict), answer.method, _error(check), _comparison(check))
    return table


def verdict_text(verdict: Verdict) -> Text:
    """A verdict in its colour."""
    return Text(verdict.value, style=VERDICT_STYLES[verdict])


def _error(check: Check) -> Text:
    if not check.max_relative_error and check.verdict is not Verdict.AGREES:
        return Text("")  # nothing was compared
    return Text(f"{check.max_relative_error:.1e} ({check.tolerance:.0e})")


def _comparison(check: Check) -> Text:
    if not check.reason:
        return Text(check.compared)
    return Text.assemble(check.compared, "\n", (check.reason, VERDICT_STYLES[check.verdict]))


# The rest


def timing_table(result: InspectResult) -> Table:
    """Where the time went, in milliseconds."""
    stages = {name.removesuffix("_ms"): spent for name, spent in asdict(result.timings).items()}
    table = heading("Time in ms", *stages, "total", numbers=len(stages) + 1)
    table.add_row(*(f"{spent:.1f}" for spent in (*stages.values(), sum(stages.values()))))
    return table


def warning_lines(result: InspectResult) -> Group:
    """What a careful reader should know, a line each; nothing where there is nothing to say."""
    return Group(
        *(
            Text.assemble((warning.code.value, "yellow"), f" {warning.subject}: {warning.message}")
            for warning in result.warnings
        )
    )


def provenance_line(result: InspectResult) -> Text:
    """Which model answered, on what, and how much work it was."""
    found = result.provenance
    return Text(
        f"{found.model} {found.version} (weights {found.weights_sha256[:12]}), {found.data_type} on {found.device}, "
        f"torch {found.torch_version}, Captum {found.captum_version}, "
        f"{found.forwards} forward and {found.backwards} backward passes",
        style="dim",
    )


def _statistics(array: Array) -> tuple[Text, Text, Text]:
    if not array.size:
        return Text("-"), Text("-"), Text("-")
    values = _printable(array)
    return _number(values.min().item()), _number(values.mean().item()), _number(values.max().item())


def _printable(array: Array) -> Array:
    """``array`` in a data type whose elements are Python's own numbers, and whose mean does not overflow."""
    return array if array.dtype.kind in "iu" else array.astype(np.float64)


def _number(value: float) -> Text:
    if isinstance(value, int):
        return Text(str(value))
    return Text(f"{value:.3g}", style="" if math.isfinite(value) else "bold red")
