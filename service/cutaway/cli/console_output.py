"""Output of the command line: tables and lines to stdout, errors to stderr."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import typer
from rich.console import Console, RenderableType
from rich.text import Text

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


def print_line(line: str, style: str = "") -> None:
    """Prints one line at once and unfolded, for a process that waits for it or copies it."""
    console = _console()
    console.print(Text(line, style=style), soft_wrap=True)
    console.file.flush()


def print_error(message: str) -> None:
    """Prints ``message`` to stderr as one red line."""
    _console(stderr=True).print(Text(" ".join(message.split()), style="red"), soft_wrap=True)


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
        print_error(f"{failure.name} is missing; this needs: pip install 'cutaway[{extra}]'")
        raise typer.Exit(2) from None
