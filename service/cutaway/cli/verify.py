"""``cutaway verify``: asks a stored question again, and says whether the answer is the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from cutaway import tables
from cutaway.cli import console_output, documents, json_output
from cutaway.cli.connection_options import with_client
from cutaway.cli.json_output import AsJson
from cutaway.client.sync_client import Client
from cutaway.display.inspection import Inspection
from cutaway.results.comparison import Comparison, compare

DIFFERS = 7
"""The exit status for an answer that is another one."""

_SHOWN = 20
"""The most differences that are listed for people."""


@with_client
def verify(
    client: Client,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="A stored explanation.", show_default=False),
    ],
    offline: Annotated[
        bool, typer.Option("--offline", help="Check only the file: that it is whole, and unchanged.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Ask a stored question again: is the answer still the same?

    Exits with status 7 if predictions, captures, gradients, attributions or verdicts differ by more than the rounding
    of their types, and says what has changed: the weights, the software, the device.
    """
    stored = Inspection.load(file)
    comparison = None
    if not offline:
        request = stored.request
        if request.seed is None:  # the one that was drawn
            request = replace(request, seed=stored.provenance.seed)
        with console_output.waiting("waiting for the server"):
            comparison = compare(stored, client.ask(request))
    if as_json:
        json_output.print_json(documents.Verification(file, stored.request.model, comparison))
    else:
        _print(file, stored, comparison)
    if comparison is not None and not comparison.same:
        raise typer.Exit(DIFFERS)


def _print(file: Path, stored: Inspection, comparison: Comparison | None) -> None:
    made = stored.provenance
    if comparison is None:
        console_output.print_line(f"{file} is whole: {made.model} {made.version}, weights {made.weights_sha256[:12]}")
        return
    verdict = "the same" if comparison.same else "DIFFERENT"
    rounding = f", {comparison.near} within rounding ({comparison.largest:.1g} at most)" if comparison.near else ""
    console_output.print_line(f"{verdict}: {comparison.exact} tensors bit for bit{rounding}")
    for change in comparison.changes:
        console_output.print_line(f"changed: {change.what}: {change.before or 'none'} -> {change.now or 'none'}")
    if comparison.differences:
        table = tables.empty_table("Differences", "place", "now, and before", folds=("place", "now, and before"))
        for each in comparison.differences[:_SHOWN]:
            table.add_row(Text(each.place), Text(each.why))
        console_output.print_blocks(table)
        if len(comparison.differences) > _SHOWN:
            console_output.print_line(f"and {len(comparison.differences) - _SHOWN} more: --json has all")
