"""The ``cutaway`` command. Asking imports no torch; what serving needs is imported when it is asked for."""

from __future__ import annotations

from typing import Annotated

import typer

from cutaway.cli import asking, batch, manual, serving, tokens
from cutaway.cli.screen import complain, say
from cutaway.errors import CutawayError
from cutaway.version import __version__

_FIRST_STEPS = """\
First steps:

\b
  cutaway package digits --adapter digits_adapter.py:Digits
  cutaway serve --model-store .
  cutaway layers digits
  cutaway inspect digits seven.png --capture 'conv*' --attribution Saliency
"""

app = typer.Typer(
    name="cutaway",
    help="Serve PyTorch models with their insides visible, and look inside them.",
    epilog=_FIRST_STEPS,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # which would take [:LAYER] for a style, and has little room at 80 columns
)
app.command()(serving.package)
app.command()(serving.serve)
app.command()(tokens.token)
app.command()(asking.models)
app.command()(asking.layers)
app.command(epilog=manual.HELP)(asking.inspect)
app.add_typer(batch.app, name="batch")


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"cutaway {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; an error ends it in one line and with status 1."""
    try:
        app()
    except CutawayError as failure:
        complain(failure)
        raise SystemExit(1) from None
