"""Globs over module names."""

from __future__ import annotations

import re


def is_glob(pattern: str) -> bool:
    """Whether ``pattern`` can match several names."""
    return "*" in pattern or "?" in pattern


_WILDCARDS = {"**": ".*", "*": r"[^.]*", "?": r"[^.]"}


def compile_glob(pattern: str) -> re.Pattern[str]:
    """Returns ``pattern`` as a regular expression for whole names."""
    parts = re.split(r"(\*\*|\*|\?)", pattern)
    return re.compile("".join(_WILDCARDS.get(part, re.escape(part)) for part in parts))
