"""What the command line writes, and where."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from cutaway.errors import CutawayError

_PIPED_WIDTH = 120  # columns; rich takes 80 where there is no terminal, and folds what a script wants to read


def _console(*, stderr: bool = False) -> Console:
    # Made anew for each use: tests and callers replace sys.stdout.
    console = Console(stderr=stderr, markup=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPED_WIDTH
    return console


def show(*blocks: RenderableType) -> None:
    """Print tables and the like, with an empty line between them."""
    console = _console()
    for index, block in enumerate(blocks):
        if index:
            console.print()
        console.print(block)


def say(line: str, style: str = "") -> None:
    """Print one line, at once and unbroken: others may be waiting for it, or copying it."""
    console = _console()
    console.print(Text(line, style=style), soft_wrap=True)
    console.file.flush()


def complain(failure: CutawayError) -> None:
    """Print ``failure`` to stderr as one red line."""
    _console(stderr=True).print(Text(" ".join(str(failure).split()), style="red"), soft_wrap=True)


def look_for(*packages: str) -> None:
    """See, inside `needing`, that ``packages`` are there, without loading them: another process will.

    Raises:
        ModuleNotFoundError: the first that is not.
    """
    for package in packages:
        if find_spec(package) is None:
            raise ModuleNotFoundError(name=package)


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Around imports: says what to install, and ends with status 2, where the packages of ``extra`` are missing."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("cutaway"):
            raise
        needs = f"{missing.name} is missing; this needs: pip install 'cutaway[{extra}]'"
        _console(stderr=True).print(Text(needs, style="red"), soft_wrap=True)
        raise typer.Exit(2) from None
