"""Reports a run: a table for the terminal, JSON, and the tables of docs/performance.md."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

from rich.table import Table

from bench.real import MODELS
from bench.requests import QUESTIONS
from bench.row import Outcome


def machine() -> dict[str, Any]:
    """Describes the machine and the versions."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "captum", "torchserve", "grpcio")},
    }


def screen(outcomes: Iterable[Outcome]) -> Table:
    """Returns the table for the terminal."""
    table = Table("row", "comparison", "ratio (middle half)", "bound", "", title="ratios of things that ran in turn")
    for each in outcomes:
        colour = {"kept": "green", "FALLS SHORT": "bold red", "cannot run": "yellow"}[each.verdict]
        table.add_row(
            each.row.name, each.row.what, each.value, each.row.limit(), f"[{colour}]{each.verdict}[/{colour}]"
        )
    return table


def as_json(outcomes: Sequence[Outcome], rounds: int) -> dict[str, Any]:
    """Returns every round of every row as JSON."""
    return {"machine": machine(), "rounds": rounds, "rows": [_row(each) for each in outcomes]}


def _row(each: Outcome) -> dict[str, Any]:
    return {
        "name": each.row.name,
        "what": each.row.what,
        "unit": each.row.unit,
        "bound": each.row.limit(),
        "verdict": each.verdict,
        "why": each.why,
        "value": each.found and each.found.middle,
        "rounds": each.found and list(each.found.rounds),
        "aside": each.found and dict(each.found.aside),
        "seconds": round(each.seconds, 1),
    }


def markdown(outcomes: Iterable[Outcome]) -> str:
    """Returns the table for docs/performance.md."""
    lines = ["| row | comparison | ratio (middle half of the rounds) | bound | |", "|---|---|---|---|---|"]
    lines += [
        f"| {each.row.name} | {each.row.what} | {each.value} | {each.row.limit()} | {each.verdict} |"
        for each in outcomes
    ]
    return "\n".join(lines)


def real_tables(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """Returns the tables of `bench.rows.real` for docs/performance.md: a row for each network, a column a question.

    A ratio that misses its bound is bold.
    """
    found = {each.row.name: each for each in outcomes}
    tables = {}
    for name, suffix in (("real", ""), ("real_8", "_8")):
        lines = [f"| network | {' | '.join(QUESTIONS.values())} |", "|---" * (len(QUESTIONS) + 1) + "|"]
        for network, of in MODELS.items():
            cells = [_cell(found.get(f"{network}_{question}{suffix}")) for question in QUESTIONS]
            lines.append(f"| {of.name} | {' | '.join(cells)} |")
        tables[name] = "\n".join(lines)
    return tables


def _cell(each: Outcome | None) -> str:
    if each is None or each.found is None:
        return "–"
    ratio = f"{each.found.middle:.2f}"
    return ratio if each.verdict == "kept" or not each.row.bound else f"**{ratio}**"


def between(page: str, tables: dict[str, str]) -> str:
    """Returns ``page`` with each table written between its markers, ``<!-- name -->`` and ``<!-- end of name -->``."""
    for name, table in tables.items():
        marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        page = marked.sub(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", page)  # type: ignore[misc]
    return page
