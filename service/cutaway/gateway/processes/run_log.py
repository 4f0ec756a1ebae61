"""The part of a log file that one run of a program has written."""

from __future__ import annotations

import os
from pathlib import Path

_TAIL_BYTES = 16 << 10


class RunLog:
    """What is appended to a log file from now on.

    Attributes:
        path: the file; its directory is created.
    """

    def __init__(self, path: Path = Path(os.devnull)) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path.resolve()
        with path.open("ab") as log:
            self._begin = log.tell()
        self._closed_tail: str | None = None

    def tail(self) -> str:
        """Returns the end of it."""
        if self._closed_tail is not None:
            return self._closed_tail
        with self.path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            begin = self._begin if self._begin <= size else 0  # else it was rotated
            log.seek(max(begin, size - _TAIL_BYTES))
            return log.read().decode(errors="replace")

    def close(self) -> None:
        """Keeps the tail: the file may be deleted."""
        self._closed_tail = self.tail()
