"""Globs over module names: ``*`` and ``?`` within one part of a name, ``**`` across parts."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import re2


def is_glob(pattern: str) -> bool:
    """Returns whether ``pattern`` can match several names."""
    return "*" in pattern or "?" in pattern


_WILDCARDS = {"**": ".*", "*": r"[^.]*", "?": r"[^.]"}


@lru_cache(maxsize=128)
def glob_matcher(pattern: str) -> Callable[[str], bool]:
    """Returns a function that tells whether a whole name matches ``pattern``, in time linear in the length of either.

    It remembers names: a model has the same ones in each request.
    """
    parts = re.split(r"(\*\*|\*|\?)", pattern)
    expression = re2.compile("(?s)" + "".join(_WILDCARDS.get(part, re2.escape(part)) for part in parts))
    return lru_cache(maxsize=2048)(lambda name: expression.fullmatch(name) is not None)
