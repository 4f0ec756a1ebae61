"""What unit tests share, and which rows of their tables are quick."""

from __future__ import annotations

import zlib
from collections import defaultdict
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Runs the tests marked ``anyio``, which are coroutines, in an event loop of asyncio."""
    return "asyncio"


SHARE, LEAST, MOST = 4, 6, 40
"""Of so many rows one is quick, but at least so many of a table and at most so many."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks most rows of large tables slow; which ones follows from their names alone."""
    tables = defaultdict(list)
    for item in items:
        if Path(__file__).parent in item.path.parents and not item.get_closest_marker("slow"):
            tables[item.nodeid.partition("[")[0]].append(item)
    for rows in tables.values():
        rows.sort(key=lambda row: zlib.crc32(row.nodeid.encode()))
        for row in rows[min(MOST, max(LEAST, len(rows) // SHARE)) :]:
            row.add_marker(pytest.mark.slow)
