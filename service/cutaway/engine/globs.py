"""Names that stand for several modules. Nothing here needs a model."""

from __future__ import annotations

import re


def is_glob(pattern: str) -> bool:
    """Whether ``pattern`` can stand for several names."""
    return "*" in pattern or "?" in pattern


_MARKS = {"**": ".*", "*": r"[^.]*", "?": r"[^.]"}


def compiled(pattern: str) -> re.Pattern[str]:
    """``pattern``, as a regular expression for whole names."""
    parts = re.split(r"(\*\*|\*|\?)", pattern)
    return re.compile("".join(_MARKS.get(part, re.escape(part)) for part in parts))
