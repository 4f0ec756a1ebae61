"""Readers of foreign bytes take what they are for, and refuse the rest in words."""

from __future__ import annotations

import random

import pytest

from tests.readers.readers import CORPUS, READERS, checked

BROKEN_ONCE = [(name, path) for name in READERS for path in sorted(CORPUS.glob(f"{name}/*"))]


@pytest.mark.parametrize("name", READERS)
def test_what_is_right_is_read(name: str) -> None:
    """Otherwise the search would end at the first check."""
    for data in READERS[name].seeds:
        READERS[name].read(data)


@pytest.mark.parametrize(("name", "path"), BROKEN_ONCE, ids=lambda value: getattr(value, "name", value))
def test_what_broke_a_reader_once(name: str, path: object) -> None:
    checked(name, path.read_bytes())  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", READERS)
def test_damage(name: str) -> None:
    """A changed, missing or doubled part anywhere."""
    source = random.Random(name)
    for data in READERS[name].seeds:
        for _ in range(60):
            begin, size = source.randrange(len(data)), source.choice((1, 1, 2, 4, 16))
            new = source.choice(
                (b"", source.randbytes(size), 2 * data[begin : begin + size], b"\xff" * size, b"0" * size)
            )
            checked(name, data[:begin] + new + data[begin + size :])
