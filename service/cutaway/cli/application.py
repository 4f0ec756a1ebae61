"""The ``cutaway`` command. Commands for clients import no torch; the others import it when they are called."""

from __future__ import annotations

from typing import Annotated

import typer

from cutaway.cli import batch, inspect_commands, manual, running, serving
from cutaway.cli.console_output import print_line
from cutaway.contract.values import __version__

_FIRST_STEPS = """\
First steps:

\b
  cutaway new adapter digits --kind image
  cutaway package digits --adapter digits_adapter.py:Digits
  cutaway serve --model-store .
  cutaway layers digits
  cutaway inspect digits seven.png --capture 'conv*' --attribution Saliency
"""

app = typer.Typer(
    name="cutaway",
    help="Serve PyTorch models, and inspect their activations, gradients and attributions.",
    epilog=_FIRST_STEPS,
    no_args_is_help=True,
    add_completion=False,  # `completion` has options that name the shell
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # which would read [:LAYER] as a style, and has little room at 80 columns
)
app.add_typer(serving.app, name="new")
app.command()(serving.package)
app.command()(serving.serve)
app.command()(serving.token)
app.command()(inspect_commands.models)
app.command()(inspect_commands.layers)
app.command(epilog=manual.HELP)(inspect_commands.inspect)
app.command()(inspect_commands.verify)
app.add_typer(batch.app, name="batch")


def _print_version(requested: bool) -> None:
    if requested:
        print_line(f"cutaway {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    install_completion: manual.Install = None,
    show_completion: manual.Show = None,
) -> None:
    pass


def main() -> None:
    """Runs the command line, and ends the process with its exit status; an error is one line."""
    raise SystemExit(running.run(app))
