"""Runs the command line; every way in which a command ends becomes an exit status here."""

from __future__ import annotations

import errno
import os

import typer

from cutaway.cli import console_output
from cutaway.cli.console_output import Failure, print_error
from cutaway.contract.errors import CutawayError, Reason, error


def run(app: typer.Typer) -> int:
    """Returns the exit status of the command in ``sys.argv``; prints its error, if any."""
    try:
        status = _status(app)
    except CutawayError as failure:
        status = _failed(str(failure), console_output.of_call(failure))
    except console_output.USAGE_ERROR as failure:
        status = _misused(failure)
    except BrokenPipeError:
        status = console_output.READER_GONE
    except OSError as failure:
        if failure.errno != errno.ENOSPC:
            raise
        status = _failed_on_full_disk(failure)
    if status == console_output.STOPPED:
        _failed("interrupted", Failure(console_output.INTERRUPTED, "interrupted", exit_status=status))
    return status


def _status(app: typer.Typer) -> int:
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
        failure.show()
        return described.exit_status
    return _failed(described.message, described)


def _failed_on_full_disk(failure: OSError) -> int:
    file = f"{failure.filename}: " if failure.filename else ""
    full = error(Reason.INVALID_VALUE, f"{file}{os.strerror(errno.ENOSPC)}")
    return _failed(str(full), console_output.of_call(full))
