"""The ``cutaway`` command. Commands for clients import no torch; the others import it when they are called."""

from __future__ import annotations

import errno
import os
from typing import Annotated

import typer

from cutaway.cli import batch, console_output, inspect_commands, serving, short_forms
from cutaway.cli.console_output import Failure, print_error, print_line
from cutaway.contract.errors import Reason, error, of_exception
from cutaway.contract.values import __version__, printable

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
app.command(epilog=short_forms.HELP)(inspect_commands.inspect)
app.command()(inspect_commands.generate)
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
    install_completion: short_forms.Install = None,
    show_completion: short_forms.Show = None,
) -> None:
    pass


def main() -> None:
    """Runs the command line, and ends the process with its exit status; an error is one line."""
    console_output.end(_run())


# Every way in which a command ends becomes an exit status here.


def _run() -> int:
    """Returns the exit status of the command in ``sys.argv``; prints its error, if any."""
    try:
        status = _status()
    except console_output.USAGE_ERROR as failure:
        status = _misused(failure)
    except BrokenPipeError:
        status = console_output.READER_GONE
    except OSError as failure:
        if failure.errno != errno.ENOSPC:
            raise
        status = _failed_on_full_disk(failure)
    except Exception as exception:
        if (known := of_exception(exception)) is None:
            raise
        status = _failed(str(known), console_output.of_call(known))
    if status == console_output.STOPPED:
        _failed("interrupted", Failure(console_output.INTERRUPTED, "interrupted", exit_status=status))
    return status


def _status() -> int:
    """Returns the status of a command that ends by itself.

    Raises:
        BrokenPipeError: nobody reads the output. For it, typer and rich end the program with status 1.
    """
    try:
        status = app(prog_name="cutaway", standalone_mode=False)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        status = end.code
    return int(status or 0)


def _failed(line: str, failure: Failure) -> int:
    print_error(line, failure)
    return failure.exit_status


def _misused(failure: console_output.UsageError) -> int:
    described = console_output.of_usage(failure)
    if not console_output.is_requested():
        failure.message = printable(failure.message)
        failure.show()
        return described.exit_status
    return _failed(described.message, described)


def _failed_on_full_disk(failure: OSError) -> int:
    file = f"{failure.filename}: " if failure.filename else ""
    full = error(Reason.INVALID_VALUE, f"{file}{os.strerror(errno.ENOSPC)}")
    return _failed(str(full), console_output.of_call(full))
