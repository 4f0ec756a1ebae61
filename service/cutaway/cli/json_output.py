"""Results as JSON: the fields of the Python objects, by their names, as one document on one line of stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import Annotated, Any

import typer

from cutaway.results.document import MAX_VALUES, document

AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result, or the error, as one JSON document: docs/command-line.md.")
]


def is_requested() -> bool:
    """Returns whether the command line has ``--json``; an error of the command line itself is JSON, too."""
    return "--json" in sys.argv[1:]


@contextmanager
def own_stdout(as_json: bool) -> Iterator[None]:
    """With ``as_json``, sends to stderr what a model prints in the block, so that stdout has the document only."""
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        yield


def print_json(value: Any, kind: type | None = None, *, max_values: int = MAX_VALUES) -> None:
    """Prints ``value`` as a JSON document.

    Args:
        value: a dataclass, a named tuple or a mapping.
        kind: the dataclass whose fields are printed, if ``value`` is of a subclass.
        max_values: the largest number of elements of a tensor whose values are printed.
    """
    print(json.dumps(document(value, kind, max_values=max_values), allow_nan=False), flush=True)
