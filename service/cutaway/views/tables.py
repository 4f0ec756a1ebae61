"""Results as tables for a terminal: rich renderables, for the command line and for any script.

    from rich.console import Console

    Console().print(*tables.result_tables(result))

Names that the model's author chose become `Text`, never markup: ``layers[0]`` is a name and no style.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cutaway.contract.results import AttributionResult, Check, Estimate, InspectResult, TokenAttribution, Verdict
from cutaway.contract.results.arrays import POSITIONS, captures, entries
from cutaway.contract.results.explanations import outcome_of_row
from cutaway.contract.results.summary import (
    Titled,
    class_labels,
    counterfactual_lines,
    influence_lines,
    outline,
    predicted_class,
    without_layer,
)
from cutaway.contract.tensors import Array, bytes_of
from cutaway.contract.values import printable

MAX_ROWS = 20
"""The most examples in a table, and tokens of an example; the others are counted."""
_MAX_VALUES = 4  # how many elements of a tensor `_first_values` shows

VERDICT_STYLES = {
    Verdict.AGREES: "green",
    Verdict.DISAGREES: "bold red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.NOT_APPLICABLE: "dim",
}


def result_tables(result: InspectResult) -> Iterator[RenderableType]:
    """Yields the tables of all parts of ``result`` that are not empty."""
    if result.estimate is not None:
        yield estimate_table(result.estimate)
    if result.generated:
        yield text_table(result)
    elif result.classes or result.predictions or result.unedited:
        yield prediction_table(result)
    if _needs_target_table(result):
        yield target_table(result)
    if result.captures:
        yield capture_table(result)
    if result.input_gradients:
        yield gradient_table(result)
    if result.parameter_gradients:
        yield parameter_table(result)
    if any(receipt.tensors for receipt in result.receipts):
        yield receipt_table(result)
    if result.attributions:
        yield attribution_table(result)
    if result.agreements:
        yield agreement_table(result)
    if result.attacks:
        yield attack_table(result)
    if result.counterfactual is not None:
        yield Text("\n".join(["Counterfactual", *map(printable, counterfactual_lines(result))]))
    if result.influence is not None:
        yield Text("\n".join(["Influence", *map(printable, influence_lines(result))]))
    if result.concepts:
        yield concept_table(result)
    if result.warnings:
        yield warning_lines(result)
    yield timing_table(result)
    yield provenance_line(result)


# The parts of tables


def empty_table(title: str, *columns: str, numbers: int = 0, folds: Collection[str] = ()) -> Table:
    """Returns a table without rows, in the style of all tables.

    Args:
        title: the line above the table.
        columns: the names of the columns.
        numbers: how many columns, counted from the last, are aligned right.
        folds: columns whose cells take several lines where the terminal is narrow.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, title=title)
    table.title_justify, table.title_style, table.caption_justify = "left", "bold", "left"
    for index, column in enumerate(columns):
        right = index >= len(columns) - numbers
        table.add_column(column, justify="right" if right else "left", no_wrap=column not in folds, overflow="fold")
    return table


def module_text(name: str) -> str:
    """Returns ``name``; for the module that is the whole model, and has an empty name, ``(the model)``."""
    return name or "(the model)"


def verdict_text(verdict: Verdict) -> Text:
    """Returns a verdict in its colour."""
    return Text(verdict.value, style=VERDICT_STYLES[verdict])


def _count_hidden_rows(table: Table, rows: int) -> None:
    """Writes below ``table`` how many of ``rows`` it does not show."""
    if rows > MAX_ROWS:
        table.caption = f"and {rows - MAX_ROWS} more"


def _first_values(array: Array | None) -> Text:
    """Returns the first few elements of ``array``."""
    if array is None:
        return Text("")
    more = [Text("...")] if array.size > _MAX_VALUES else []
    return Text(" ").join([*map(_number_text, array.reshape(-1)[:_MAX_VALUES]), *more])


def _statistics(array: Array) -> tuple[Text, Text, Text]:
    """Returns the minimum, mean and maximum of ``array``; dashes for an array without elements."""
    if not array.size:
        return Text("-"), Text("-"), Text("-")
    values = array if array.dtype.kind in "iu" else array.astype(np.float64)  # so that means are finite
    return _number_text(values.min()), _number_text(values.mean()), _number_text(values.max())


def _number_text(value: float | np.generic) -> Text:
    """Returns an integer with all digits, another number with three; NaN and infinity in red."""
    if isinstance(value, np.integer):
        return Text(str(value))
    number = float(value)
    return Text(f"{number:.3g}", style="" if math.isfinite(number) else "bold red")


# Predictions, targets, captured tensors and gradients


def prediction_table(result: InspectResult) -> RenderableType:
    """Returns a table of the predicted classes; of the outputs, for a model without classes or with several outputs.

    If the result has the prediction of the unedited model too, a change is written as ``before -> after``.
    """
    if not result.classes:
        return _outputs(result, "Prediction")
    if len(result.predictions) <= 1:
        return _classes(result)
    return Group(_classes(result), "", _outputs(result, "Outputs"))


def text_table(result: InspectResult) -> Table:
    """Returns a table of what each row of a generation wrote, with the verdict of its replay."""
    unedited, replay = result.unedited_texts, result.replay
    names = ["text", *["unedited"] * bool(unedited), "tokens", "ended", *["replay"] * (replay is not None)]
    table = empty_table("Texts", *names, folds=("text", "unedited"))
    for row, (text, reason) in enumerate(zip(result.texts[:MAX_ROWS], result.finish_reasons)):
        table.add_row(
            Text(printable(text), style="bold"),
            *(Text(printable(own)) for own in unedited[row : row + 1]),
            str(sum(step.tokens[row] >= 0 for step in result.generated)),
            reason.value,
            *([] if replay is None else [verdict_text(replay.of_row(row).verdict)]),
        )
    _count_hidden_rows(table, len(result.texts))
    return table


def receipt_table(result: InspectResult) -> Table:
    """Returns a table of what each edit did."""
    table = empty_table("Edits", "edit", "tensors", "steps", "changed by (2-norm)", numbers=1)
    for number, receipt in enumerate(result.receipts[:MAX_ROWS]):
        steps = f"{receipt.steps[0]} to {receipt.steps[-1]}" if len(receipt.steps) > 1 else ""
        tensors = f"{receipt.tensors}, {len(receipt.left_out)} left out" if receipt.left_out else str(receipt.tensors)
        table.add_row(str(number), tensors, steps, f"{receipt.norm:.4g}")
    _count_hidden_rows(table, len(result.receipts))
    return table


def _classes(result: InspectResult) -> Table:
    show_label = any(prediction.label for prediction in result.classes)
    targets, values = (None, None) if _needs_target_table(result) else (result.targets, result.target_values)
    shown = [*["target"] * (targets is not None), *["target's value"] * (values is not None)]
    explained = [] if result.explained_rows is None else [result.explained_rows]
    names = ["example", "class", *["label"] * show_label, "probability", *shown, *["explained"] * len(explained)]
    table = empty_table("Prediction", *names, numbers=1 + len(shown), folds=("label",))
    unedited = result.unedited_classes or result.classes
    for index, (before, after) in enumerate(zip(unedited, result.classes[:MAX_ROWS])):
        passes = [before, after] if result.unedited_classes else [after]
        known_as, shares = zip(*(predicted_class(result, each) for each in passes))
        table.add_row(
            str(index),
            _change(str(before.index), str(after.index)),
            *[_change(known_as[0], known_as[-1], "bold")] * show_label,
            Text(" -> ").join(
                Text(share, style="bold" if each.probability >= 0.5 else "") for share, each in zip(shares, passes)
            ),
            *([] if targets is None else [_class_text(result, int(targets[index]))]),
            *([] if values is None else [_number_text(values[index])]),
            *("yes" if rows[index] else "no" for rows in explained),
        )
    _count_hidden_rows(table, len(result.classes))
    return table


def _change(before: str, after: str, style: str = "") -> Text:
    """Returns ``cat -> dog``, or ``dog`` if it did not change."""
    return Text.assemble("" if before == after else f"{before} -> ", (after, style))


def _outputs(result: InspectResult, title: str) -> Table:
    columns = {"first values": result.predictions, "unedited": result.unedited}
    shown = {column: outputs for column, outputs in columns.items() if outputs}
    table = empty_table(title, "output", "tensor", *shown, folds=("output", *shown))
    for name, array in {**result.unedited, **result.predictions}.items():
        table.add_row(Text(name), outline(array), *(_first_values(outputs.get(name)) for outputs in shown.values()))
    return table


def _needs_target_table(result: InspectResult) -> bool:
    """Returns whether targets need their own table: several per example, or no predicted classes beside them."""
    values = result.target_values
    return values is not None and (values.ndim > 1 or not result.classes)


def target_table(result: InspectResult) -> Table:
    """Returns a table of the targets: the class, if the target is one, and the value of the target scalar."""
    values: Array = np.zeros(0) if result.target_values is None else result.target_values
    classes = [] if result.targets is None else [result.targets.reshape(-1)]
    per_example = values.shape[1] if values.ndim > 1 else 1
    names = ["example", *[_noun(result)] * len(classes), "value"]
    table = empty_table("Targets", *names, numbers=len(names) - 1)
    for index, value in enumerate(values.reshape(-1)[:MAX_ROWS]):
        table.add_row(
            str(index // per_example), *(_class_text(result, int(each[index])) for each in classes), _number_text(value)
        )
    _count_hidden_rows(table, values.size)
    return table


def _noun(result: InspectResult) -> str:
    """Returns what a target's index is of: a class, or an element of the output of a model without classes."""
    return "class" if result.classes or class_labels(result) else "element"


def _class_text(result: InspectResult, index: int) -> Text:
    """Returns the label of a class that was explained or found, else its index."""
    return Text(printable(class_labels(result).get(index, "")) or str(index))


def concept_table(result: InspectResult) -> Table:
    """Returns a table of what TCAV found, by layer and concept: means over the random sets."""
    names = ["layer", "concept", "verdict", "share", "p-value", "accuracy", "random sets"]
    table = empty_table("Concepts", *names, numbers=4, folds=("layer", "concept"))
    for each in result.concepts[:MAX_ROWS]:
        low, high = min(each.random_shares, default=math.nan), max(each.random_shares, default=math.nan)
        accuracy = sum(each.accuracies) / max(1, len(each.accuracies))
        table.add_row(
            module_text(each.layer),
            Text(printable(each.concept), style="bold"),
            "" if each.check is None else verdict_text(each.check.verdict),
            f"{each.share:.2f}",
            f"{each.p_value:.3g}",
            f"{accuracy:.2f}",
            f"{low:.2f} to {high:.2f}",
        )
    _count_hidden_rows(table, len(result.concepts))
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
        first = [_first_values(positions.get(place))] * bool(positions)
        table.add_row(*cells, outline(array), *first, *_statistics(array))
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
        table.add_row(Text(name), outline(array), *_statistics(array))
    return table


# Attributions with their checks, metrics and tokens


def attack_table(result: InspectResult) -> Table:
    """Returns a table of what attacks changed, by example."""
    columns = ("attack", "verdict", "example", "class", "reached", "loss", "change", "least")
    table = empty_table("Attacks", *columns, numbers=3)
    for attack in result.attacks:
        rows = range(0 if attack.losses is None else len(attack.losses))
        for row in rows[:MAX_ROWS]:
            verdict = verdict_text(outcome_of_row(attack.checks, row).verdict) if attack.checks else Text("-")
            reached = "-" if attack.succeeded is None else "yes" if attack.succeeded[row] else "no"
            columns_of_row = (attack.losses, attack.linf, attack.parameters)
            cells = [Text("-") if values is None else _number_text(values[row]) for values in columns_of_row]
            found = Text("-") if attack.classes is None else _class_text(result, int(attack.classes[row]))
            table.add_row(Text(attack.method), verdict, str(row), found, reached, *cells)
    return table


def agreement_table(result: InspectResult) -> Table:
    """Returns a table of how far attributions agree, with the figures of the first examples."""
    columns = ("method", "and", "cosine", "rank correlation", "largest tenth", "by magnitude")
    table, names = empty_table("Agreement", *columns, folds=("method", "and")), result.titles()
    for each in result.agreements[:MAX_ROWS]:
        cells = map(_first_values, each.figures)
        table.add_row(Text(names[each.first]), Text(names[each.second]), *cells, "yes" if each.of_magnitudes else "")
    _count_hidden_rows(table, len(result.agreements))
    return table


def attribution_table(result: InspectResult) -> Group:
    """Returns the values of every attribution, and below them its checks, its metrics and its sums by token."""
    attributions = result.attributions
    titled = [(without_layer(title, each), each) for title, each in zip(result.titles(), attributions)]
    blocks: list[RenderableType] = [_attributions(titled, result)]
    if any(attribution.checks for attribution in attributions):
        blocks.append(_checks(titled))
    if any(attribution.metrics for attribution in attributions):
        blocks.append(_metrics(titled))
    for attribution in attributions:
        if attribution.tokens is not None:
            blocks += _token_tables(attribution, attribution.tokens, result)
    return Group(*[part for block in blocks for part in ("", block)][1:])


def _attributions(titled: Sequence[Titled], result: InspectResult) -> Table:
    attributions, noun = result.attributions, _noun(result)
    methods = {(attribution.method, attribution.layer) for attribution in attributions}
    show_class = len(methods) < len(attributions)  # a method for several classes: only the class tells them apart
    show_steps = any(attribution.n_steps for attribution in attributions)
    show_errors = any(attribution.standard_errors for attribution in attributions)
    optional = [*["largest std. error"] * show_errors, *["steps"] * show_steps]
    names = ["method", "of", "shape", *[noun] * show_class, "min", "max", "delta", *optional]
    table = empty_table("Attributions", *names, numbers=len(names) - 3, folds=("of", noun))
    for title, attribution in titled:
        if attribution.error is not None:
            why = Text(f"{attribution.error.reason}: {attribution.error.message}", style="red")
            table.add_row(Text(title), why, *[""] * (len(names) - 2))
        delta, steps = attribution.convergence_delta, str(attribution.n_steps or "")
        for name, array in attribution.values.items():
            low, _, high = _statistics(array)
            error = attribution.standard_errors.get(name)
            table.add_row(
                *(Text(title), Text(name), Text(str(list(array.shape)))),
                *[_first_classes(attribution.targets, result)] * show_class,
                *(low, high, "" if delta is None else _number_text(np.abs(delta).max())),
                *["" if error is None else _number_text(error.max())] * show_errors,
                *[steps] * show_steps,
            )
    return table


def _first_classes(targets: Array | None, result: InspectResult) -> Text:
    """Returns the classes of the first rows; those of models without labels as numbers."""
    if targets is None or not class_labels(result):
        return _first_values(targets)
    more = [Text("...")] if len(targets) > _MAX_VALUES else []
    return Text(", ").join([*(_class_text(result, index) for index in targets[:_MAX_VALUES].tolist()), *more])


def _checks(titled: Sequence[Titled]) -> Table:
    table = empty_table("Checks", "verdict", "method", "error (allowed)", "compared with", folds=("compared with",))
    for title, attribution in titled:
        for check in attribution.checks:
            # Without an error, nothing was compared.
            compared = check.max_relative_error or check.verdict is Verdict.AGREES
            error = f"{check.max_relative_error:.1e} ({check.tolerance:.0e})" if compared else ""
            table.add_row(verdict_text(check.verdict), Text(title), Text(error), _comparison(check))
    return table


def _comparison(check: Check) -> Text:
    cause = "" if check.cause is None or check.verdict is Verdict.AGREES else check.cause.value
    explanation = ": ".join(filter(None, [cause, check.reason]))
    if not explanation:
        return Text(check.compared)
    return Text.assemble(check.compared, "\n", (explanation, VERDICT_STYLES[check.verdict]))


def _metrics(titled: Sequence[Titled]) -> Table:
    """Returns a table of the metrics, with their values for the first examples."""
    heads = ("metric", "method", "of", "by example", "random", "better")
    table = empty_table("Metrics", *heads, folds=("of", "by example", "random"))
    for title, attribution in titled:
        names = ", ".join(attribution.values)
        for metric in attribution.metrics:
            better = "" if metric.better is None else metric.better.value.lower()
            values, random = map(_first_values, (metric.values, metric.random))
            table.add_row(Text(metric.name), Text(title), Text(names), values, random, better)
    return table


def _token_tables(
    attribution: AttributionResult, tokens: TokenAttribution, result: InspectResult
) -> Iterator[RenderableType]:
    """Yields the tables of the examples: the tokens with the largest sums, in the order of the text."""
    for row in range(min(len(tokens.values), MAX_ROWS)):
        target = ""
        if attribution.targets is not None:
            target = f", {_noun(result)} {_class_text(result, int(attribution.targets[row]))}"
        against = tokens.against(row)
        target += f", {against}" if against else ""
        title = f"Tokens of example {row}: {attribution.method} at {module_text(attribution.layer)}{target}"
        yield Group(Text(title, style="bold"), _tokens(tokens, row))  # a table's own title folds at its width
    if len(tokens.values) > MAX_ROWS:
        yield Text(f"and the tokens of {len(tokens.values) - MAX_ROWS} more examples", style="dim")


def _tokens(tokens: TokenAttribution, row: int) -> Table:
    values = tokens.values[row].astype(np.float64)
    magnitudes = np.where(np.isnan(values), np.inf, np.abs(values))
    positions = sorted(np.argsort(-magnitudes, kind="stable")[:MAX_ROWS].tolist())
    table = empty_table("", "position", "token", "value", numbers=1, folds=("token",))
    for position in positions:
        table.add_row(str(position), _token(tokens, row, position), _number_text(values[position]))
    if len(values) > len(positions):
        table.caption = f"and {len(values) - len(positions)} smaller ones"
    return table


def _token(tokens: TokenAttribution, row: int, position: int) -> Text:
    """Returns the token's text in one line, or its id if its text is not known."""
    texts = tokens.texts[row] if row < len(tokens.texts) else ()
    text = texts[position] if position < len(texts) else ""
    if not text:
        return Text(str(tokens.ids[row][position]), style="dim")
    return Text(text if text.isprintable() else repr(text)[1:-1])


# The estimate, time, warnings and origin of a reply


def estimate_table(estimate: Estimate) -> Table:
    """Returns every tensor of the estimated reply with its size; below it the total size and number of passes."""
    table = empty_table("The reply would be", "place", "tensor", "bytes", numbers=1, folds=("place",))
    for place, tensor in estimate.tensors.items():
        size = bytes_of(tensor.data_type, tensor.shape)
        table.add_row(Text(place), Text(f"{tensor.data_type}{list(tensor.shape)}"), Text(f"{size:,}"))
    passes = f"; up to {estimate.passes:,} passes for attributions, counting each example" if estimate.passes else ""
    table.caption = f"about {estimate.reply_bytes:,} bytes in all, without compression{passes}"
    return table


def timing_table(result: InspectResult) -> Table:
    """Returns the times of the stages, in milliseconds."""
    stages = {name.removesuffix("_ms"): duration for name, duration in asdict(result.timings).items()}
    table = empty_table("Time in ms", *stages, "total", numbers=len(stages) + 1)
    table.add_row(*(f"{duration:.1f}" for duration in (*stages.values(), sum(stages.values()))))
    return table


def warning_lines(result: InspectResult) -> Group:
    """Returns the lines of the warnings."""
    lines = [(f" {warning.subject}: {warning.message}", warning.code.value) for warning in result.warnings]
    return Group(*(Text.assemble((code, "yellow"), text) for text, code in lines))


def provenance_line(result: InspectResult) -> Text:
    """Returns the model, its weights, device and versions, and the number of passes."""
    provenance = result.provenance
    return Text(
        f"{provenance.model} {provenance.version} (weights {provenance.weights_sha256[:12]}), "
        f"{provenance.data_type} on {provenance.device}, "
        f"torch {provenance.torch_version}, Captum {provenance.captum_version}, "
        f"{provenance.forwards} forward and {provenance.backwards} backward passes",
        style="dim",
    )
