"""All tables of a reply, among them those of its estimate, time, warnings and origin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cutaway.contract.results import Estimate, InspectResult
from cutaway.contract.tensors import bytes_of
from cutaway.views.tables.attributions import attribution_table
from cutaway.views.tables.cells import empty_table
from cutaway.views.tables.predictions import (
    capture_table,
    gradient_table,
    needs_target_table,
    parameter_table,
    prediction_table,
    target_table,
)


def result_tables(result: InspectResult) -> Iterator[RenderableType]:
    """Yields the tables of all parts of ``result`` that are not empty."""
    if result.estimate is not None:
        yield estimate_table(result.estimate)
    if result.classes or result.predictions or result.unedited:
        yield prediction_table(result)
    if needs_target_table(result):
        yield target_table(result)
    if result.captures:
        yield capture_table(result)
    if result.input_gradients:
        yield gradient_table(result)
    if result.parameter_gradients:
        yield parameter_table(result)
    if result.attributions:
        yield attribution_table(result)
    if result.warnings:
        yield warning_lines(result)
    yield timing_table(result)
    yield provenance_line(result)


def estimate_table(estimate: Estimate) -> Table:
    """Returns every tensor of the estimated reply with its size; below it the total size and number of passes."""
    table = empty_table("The reply would be", "place", "tensor", "bytes", numbers=1, folds=("place",))
    for place, outline in estimate.tensors.items():
        size = bytes_of(outline.data_type, outline.shape)
        shape = ", ".join(map(str, outline.shape))
        table.add_row(Text(place), Text(f"{outline.data_type}[{shape}]"), Text(f"{size:,}"))
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
    return Group(
        *(
            Text.assemble((warning.code.value, "yellow"), f" {warning.subject}: {warning.message}")
            for warning in result.warnings
        )
    )


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
