"""Whether a file is another one than it was."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

Look: TypeAlias = "tuple[int, int, int] | None"
"""A file's time of change, size and inode; None where there is no file."""


def look(path: Path) -> Look:
    """How the file at ``path`` looks now; whatever it is a link to."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
