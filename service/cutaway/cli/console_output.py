"""Output of the command line: tables and lines to stdout, errors and progress to stderr."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.util import find_spec

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from cutaway.cli import json_output
from cutaway.cli.failures import PACKAGE_MISSING, WRONG_COMMAND, Failure

_PIPED_WIDTH = 120  # columns; without a terminal rich takes 80, and folds lines that a script reads


def _console(*, stderr: bool = False) -> Console:
    # A new one for each use: tests and callers replace sys.stdout.
    console = Console(stderr=stderr, markup=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPED_WIDTH
    return console


def print_blocks(*blocks: RenderableType) -> None:
    """Prints tables and texts with an empty line between them."""
    console = _console()
    for index, block in enumerate(blocks):
        if index:
            console.print()
        console.print(block)


def print_line(line: str, style: str = "", *, to_stderr: bool = False) -> None:
    """Prints one line at once and unfolded, for a process that waits for it or copies it."""
    console = _console(stderr=to_stderr)
    console.print(Text(line, style=style), soft_wrap=True)
    console.file.flush()


def print_error(line: str, failure: Failure) -> None:
    """Prints ``line`` to stderr as one red line; with ``--json``, prints ``failure`` in its place."""
    text = Text(" ".join(line.split()), style="red")
    if json_output.is_requested():
        text = Text(json.dumps({"error": asdict(failure)}))
    with suppress(OSError):  # stderr itself cannot be written: the exit status is all that is left
        _console(stderr=True).print(text, soft_wrap=True)


@contextmanager
def waiting(what: str, after_s: float = 1.0) -> Iterator[None]:
    """Shows ``what`` with the elapsed time on stderr while the block runs, from ``after_s`` seconds on.

    Shows nothing if stderr is no terminal.
    """
    if not sys.stderr.isatty():
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    progress = Progress(*columns, console=_console(stderr=True), transient=True)
    progress.add_task(what)
    timer = threading.Timer(after_s, progress.start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        progress.stop()


def find_packages(*packages: str) -> None:
    """Checks that ``packages`` are installed, without importing them; for use inside `requires_extra`.

    Raises:
        ModuleNotFoundError: a package is not installed.
    """
    for package in packages:
        if find_spec(package) is None:
            raise ModuleNotFoundError(name=package)


@contextmanager
def requires_extra(extra: str) -> Iterator[None]:
    """Ends the program with status 2 if an import in the block fails, and prints how to install ``extra``."""
    try:
        yield
    except ModuleNotFoundError as failure:
        if (failure.name or "").startswith("cutaway"):
            raise
        message = f"{failure.name} is missing; this needs: pip install 'cutaway[{extra}]'"
        print_error(message, Failure(PACKAGE_MISSING, message))
        raise typer.Exit(WRONG_COMMAND) from None
