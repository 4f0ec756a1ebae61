"""Short texts of names, shapes and numbers, which are safe to print whatever a server sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from cutaway.schema.tensors import Array

_JOINERS = "\u200c\u200d"
"""Join and separate letters of Persian, Hindi and emoji; they do nothing else."""


def harmless(text: str, limit: int = 60) -> str:
    """Returns ``text`` in at most ``limit`` characters, with escapes in place of those that control a terminal, end a
    line or change the direction of the text."""
    shown = "".join(_visible(character) for character in text[:limit])
    return shown if len(text) <= limit and len(shown) <= limit else f"{shown[: limit - 1]}…"


def _visible(character: str) -> str:
    if character.isprintable() or character in _JOINERS:
        return character
    return " " if character.isspace() and character not in "\r\v\f" else ascii(character)[1:-1]


def outline(array: Array) -> str:
    """Returns the data type and shape: ``float32[2, 10]``."""
    return f"{array.dtype.name}{list(array.shape)}"


def byte_count(count: int) -> str:
    """Returns a number of bytes for people: ``812 bytes``, ``34.1 kB``, ``1.2 GB``."""
    if count < 1000:
        return f"{count} bytes"
    power = next((power for power in (1, 2) if count < 999.95 * 1000**power), 3)
    return f"{count / 1000**power:.1f} {('kB', 'MB', 'GB')[power - 1]}"


def first(lines: Iterable[str], most: int, total: int) -> Iterator[str]:
    """Yields ``lines``, ``total`` in number, in at most ``most`` lines: the last says how many were left out."""
    shown = total if total <= most else most - 1
    yield from islice(lines, shown)
    if shown < total:
        yield f"… {total - shown:,} more"


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Returns ``1 example``, ``1,000 examples``; ``nouns`` is a plural that does not only add an s."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"
