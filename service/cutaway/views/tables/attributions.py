"""Attributions with their checks, metrics and tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cutaway.contract.results import AttributionResult, Check, InspectResult, TokenAttribution, Verdict
from cutaway.contract.tensors import Array
from cutaway.views.tables.cells import MAX_ROWS, empty_table, first_values, module_text, number_text, statistics

_MAX_TOKENS = 20  # of an example; the others are counted


def token_tables(attribution: AttributionResult) -> Iterator[RenderableType]:
    """Yields the tables of the examples: the tokens with the largest sums, in the order of the text."""
    tokens = attribution.tokens
    if tokens is None:
        return
    for row in range(min(len(tokens.values), MAX_ROWS)):
        target = "" if attribution.targets is None else f", class {attribution.targets[row]}"
        title = f"Tokens of example {row}: {attribution.method} at {module_text(attribution.layer)}{target}"
        yield Group(Text(title, style="bold"), _example(tokens, row))  # a table's own title folds at its width
    if len(tokens.values) > MAX_ROWS:
        yield Text(f"and the tokens of {len(tokens.values) - MAX_ROWS} more examples", style="dim")


def _example(tokens: TokenAttribution, row: int) -> Table:
    values = tokens.values[row].astype(np.float64)
    positions = _largest(values)
    table = empty_table("", "position", "token", "value", numbers=1, folds=("token",))
    for position in positions:
        table.add_row(str(position), _token(tokens, row, position), number_text(float(values[position])))
    if len(values) > len(positions):
        table.caption = f"and {len(values) - len(positions)} smaller ones"
    return table


def _largest(values: Array) -> list[int]:
    """Returns the indices of the largest magnitudes in ascending order; NaN counts as infinite."""
    magnitudes = np.where(np.isnan(values), np.inf, np.abs(values))
    return sorted(np.argsort(-magnitudes, kind="stable")[:_MAX_TOKENS].tolist())


def _token(tokens: TokenAttribution, row: int, position: int) -> Text:
    """Returns the token's text in one line, or its id if its text is not known."""
    texts = tokens.texts[row] if row < len(tokens.texts) else ()
    text = texts[position] if position < len(texts) else ""
    if not text:
        return Text(str(tokens.ids[row][position]), style="dim")
    return Text(text if text.isprintable() else repr(text)[1:-1])


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
    """Returns a table of the metrics, with their values for the first examples."""
    table = empty_table("Metrics", "metric", "method", "of", "by example", folds=("of", "by example"))
    for attribution in attributions:
        names = ", ".join(attribution.values)
        for metric in attribution.metrics:
            table.add_row(Text(metric.name), attribution.method, Text(names), first_values(metric.values))
    return table
