"""The names and versions that models may have: safe in paths, in URLs and in TorchServe's configuration."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")
_VERSION = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def name_fault(name: str) -> str:
    """Returns what is wrong with a model's name; ``""`` if nothing is."""
    if _NAME.fullmatch(name) and ".." not in name:  # TorchServe takes .. for a path out of its model store
        return ""
    return f"{name[:200]!r} is no model name: a letter, then up to 127 letters, digits, _, . and -"


def version_fault(version: str) -> str:
    """Returns what is wrong with a version; ``""`` if nothing is."""
    if _VERSION.fullmatch(version):
        return ""
    return f"{version[:200]!r} is no version: up to 64 letters, digits, _, . and -"
