"""Explanations, and what checks and metrics say of them."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cutaway.results import AttributionResult, Check, InspectResult, Verdict
from cutaway.tables.cells import first_values, heading, number, statistics
from cutaway.tables.tokens import token_tables

VERDICT_STYLES = {
    Verdict.AGREES: "green",
    Verdict.DISAGREES: "bold red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.NOT_APPLICABLE: "dim",
}


def attribution_table(result: InspectResult) -> Group:
    """Every attribution's values, and below them what the checks say, what metrics say, and what each token adds."""
    answers = result.attributions
    blocks: list[RenderableType] = [_values(result)]
    if any(answer.checks for answer in answers):
        blocks.append(_checks(answers))
    if any(answer.metrics for answer in answers):
        blocks.append(_metrics(answers))
    blocks += [each for answer in answers for each in token_tables(answer)]
    return Group(*[each for block in blocks for each in ("", block)][1:])


def _values(result: InspectResult) -> Table:
    several = explains_several(result)
    steps = any(answer.n_steps for answer in result.attributions)
    names = ["method", "of", "shape", *(["class"] if several else []), "min", "max", "delta", *(["steps"] * steps)]
    table = heading("Attributions", *names, numbers=len(names) - 3, folds=("of", "class"))
    for answer in result.attributions:
        about = [Text("") if answer.targets is None else first_values(answer.targets)] if several else []
        delta = "" if answer.convergence_delta is None else number(float(np.abs(answer.convergence_delta).max()))
        taken = [str(answer.n_steps or "")] if steps else []
        for name, array in answer.values.items():
            low, _, high = statistics(array)
            table.add_row(answer.method, Text(name), str(list(array.shape)), *about, low, high, delta, *taken)
    return table


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
    cause = "" if check.cause is None or check.verdict is Verdict.AGREES else check.cause.value
    why = ": ".join(filter(None, [cause, check.reason]))
    if not why:
        return Text(check.compared)
    return Text.assemble(check.compared, "\n", (why, VERDICT_STYLES[check.verdict]))


def _metrics(answers: tuple[AttributionResult, ...]) -> Table:
    """A metric a row, with its numbers for the first examples."""
    table = heading("Metrics", "metric", "method", "of", "an example each", folds=("of", "an example each"))
    for answer in answers:
        of = ", ".join(answer.values)
        for metric in answer.metrics:
            table.add_row(Text(metric.name), answer.method, Text(of), first_values(metric.values))
    return table
