"""Completion of the command line in shells. It knows commands, options and methods, and contacts no server."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from typer.completion import get_completion_inspect_parameters, install_callback, show_callback

from cutaway.request_reader.reader import CLASSES
from cutaway.requests import Attribution, Edit

Shell = Literal["bash", "zsh", "fish", "powershell", "pwsh"]

get_completion_inspect_parameters()  # registers the shells, as typer does for options of its own

# Typer's own options ask the parent process for the shell, and take no name of one.
Install = Annotated[
    Shell | None,
    typer.Option(
        "--install-completion",
        callback=install_callback,
        is_eager=True,
        help="Install completion for a shell, and exit.",
    ),
]
Show = Annotated[
    Shell | None,
    typer.Option(
        "--show-completion",
        callback=show_callback,
        is_eager=True,
        help="Show the completion script for a shell, and exit.",
    ),
]


def methods(incomplete: str) -> list[str]:
    """Returns the methods that begin with ``incomplete``, for ``--attribution``."""
    return _beginning([kind.__name__ for kind in CLASSES[Attribution].values()], incomplete)


def edits(incomplete: str) -> list[str]:
    """Returns the edits that begin with ``incomplete``, for ``--edit``; a colon and a module's name follow."""
    return _beginning(list(CLASSES[Edit]), incomplete)


def _beginning(names: list[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
