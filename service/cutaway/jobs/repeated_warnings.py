"""Shows each warning of a job once: Captum repeats its own for every batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def shown_once() -> Iterator[None]:
    """While the block runs, shows only the first of several warnings with the same category and text.

    Python's own filter forgets what it has shown whenever `warnings.catch_warnings` is used anywhere.
    """
    show, shown = warnings.showwarning, set[tuple[type[Warning], str]]()

    def show_first(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        key = category, str(message)
        if key not in shown:
            shown.add(key)
            show(message, category, filename, lineno, file, line)

    warnings.showwarning = show_first
    try:
        yield
    finally:
        warnings.showwarning = show
