"""How an answer came about: its time, its warnings, its origin."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Group
from rich.table import Table
from rich.text import Text

from cutaway.results import InspectResult
from cutaway.tables.cells import heading


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
