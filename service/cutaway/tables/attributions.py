"""Attributions with their checks, metrics and tokens."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cutaway.results import AttributionResult, Check, InspectResult, Verdict
from cutaway.tables.cells import empty_table, first_values, number_text, statistics
from cutaway.tables.tokens import token_tables

VERDICT_STYLES = {
    Verdict.AGREES: "green",
    Verdict.DISAGREES: "bold red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.NOT_APPLICABLE: "dim",
}


def attribution_table(result: InspectResult) -> Group:
    """Returns the values of every attribution, and below them its checks, its metrics and its sums by token."""
    attributions = result.attributions
    blocks: list[RenderableType] = [_values(attributions)]
    if any(attribution.checks for attribution in attributions):
        blocks.append(_checks(attributions))
    if any(attribution.metrics for attribution in attributions):
        blocks.append(_metrics(attributions))
    for attribution in attributions:
        blocks += token_tables(attribution)
    return Group(*[part for block in blocks for part in ("", block)][1:])


def _values(attributions: tuple[AttributionResult, ...]) -> Table:
    methods = {(attribution.method, attribution.layer) for attribution in attributions}
    show_class = len(methods) < len(attributions)  # a method for several classes: only the class tells them apart
    show_steps = any(attribution.n_steps for attribution in attributions)
    show_errors = any(attribution.standard_errors for attribution in attributions)
    optional = [*["largest std. error"] * show_errors, *["steps"] * show_steps]
    names = ["method", "of", "shape", *["class"] * show_class, "min", "max", "delta", *optional]
    table = empty_table("Attributions", *names, numbers=len(names) - 3, folds=("of", "class"))
    for attribution in attributions:
        if attribution.error is not None:
            why = Text(f"{attribution.error.reason}: {attribution.error.message}", style="red")
            table.add_row(Text(attribution.method), why, *[""] * (len(names) - 2))
        classes = Text("") if attribution.targets is None else first_values(attribution.targets)
        delta = attribution.convergence_delta
        largest_delta = "" if delta is None else number_text(float(np.abs(delta).max()))
        steps = str(attribution.n_steps or "")
        for name, array in attribution.values.items():
            low, _, high = statistics(array)
            cells = [Text(attribution.method), Text(name), Text(str(list(array.shape))), *[classes] * show_class]
            error = attribution.standard_errors.get(name)
            largest_error = "" if error is None else number_text(float(error.max()))
            more = [*[largest_error] * show_errors, *[steps] * show_steps]
            table.add_row(*cells, low, high, largest_delta, *more)
    return table


def _checks(attributions: tuple[AttributionResult, ...]) -> Table:
    table = empty_table("Checks", "verdict", "method", "error (allowed)", "compared with", folds=("compared with",))
    for attribution in attributions:
        for check in attribution.checks:
            table.add_row(verdict_text(check.verdict), attribution.method, _error(check), _comparison(check))
    return table


def verdict_text(verdict: Verdict) -> Text:
    """Returns a verdict in its colour."""
    return Text(verdict.value, style=VERDICT_STYLES[verdict])


def _error(check: Check) -> Text:
    if not check.max_relative_error and check.verdict is not Verdict.AGREES:
        return Text("")  # nothing was compared
    return Text(f"{check.max_relative_error:.1e} ({check.tolerance:.0e})")


def _comparison(check: Check) -> Text:
    cause = "" if check.cause is None or check.verdict is Verdict.AGREES else check.cause.value
    explanation = ": ".join(filter(None, [cause, check.reason]))
    if not explanation:
        return Text(check.compared)
    return Text.assemble(check.compared, "\n", (explanation, VERDICT_STYLES[check.verdict]))


def _metrics(attributions: tuple[AttributionResult, ...]) -> Table:
    """Returns a row for each metric, with its values for the first examples."""
    table = empty_table("Metrics", "metric", "method", "of", "by example", folds=("of", "by example"))
    for attribution in attributions:
        names = ", ".join(attribution.values)
        for metric in attribution.metrics:
            table.add_row(Text(metric.name), attribution.method, Text(names), first_values(metric.values))
    return table
