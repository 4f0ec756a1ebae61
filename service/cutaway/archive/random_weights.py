"""Finds adapters whose models may have random parameters, because an archive has no weights."""

from __future__ import annotations

import ast

_OWN_WEIGHTS = ("load", "pretrained", "weight", "seed", "directory")
"""Parts of the names in an adapter's file that show that it loads weights of its own, or chooses parameters."""


def may_be_random(source: bytes) -> bool:
    """Whether an adapter with this ``source``, packaged without weights, has parameters that nobody chose.

    The code is not run: a name in it that could be of its own weights counts as such. False for what is no Python: it
    does not load.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    names = (name.lower() for node in ast.walk(tree) for name in _names(node))
    return not any(part in name for name in names for part in _OWN_WEIGHTS)


def _names(node: ast.AST) -> list[str]:
    fields = [getattr(node, field, None) for field in ("id", "attr", "name", "arg", "module")]
    return [field for field in fields if isinstance(field, str)]
