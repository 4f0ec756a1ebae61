"""Reads JSON that others have written: each key once, and no deeper than Python can read."""

from __future__ import annotations

import encodings.utf_8_sig  # noqa: F401  # Python imports it on first use, but not where no file can be opened
import json
from collections.abc import Iterable
from typing import Any

MAX_DEPTH = 100
"""The most mappings and lists inside one another; functions that walk the value call themselves."""

_TOO_DEEP = f"it is nested too deeply: at most {MAX_DEPTH} objects and lists inside one another"


def read_json(text: str | bytes) -> Any:
    """Returns the value of a JSON text.

    Raises:
        ValueError: the text is no JSON, is nested too deeply, or has a key twice in one object: readers differ in which
            of the two counts.
    """
    text = text if isinstance(text, str) else text.decode("utf-8-sig")
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return value
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for each in level if isinstance(each, (dict, list)) for item in _items(each)]
        if not level:
            return value
    raise ValueError(_TOO_DEEP)


def _items(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for index, key in enumerate(keys) if key in keys[:index])
        raise ValueError(f"the key {twice!r:.80} is there twice")
    return mapping
