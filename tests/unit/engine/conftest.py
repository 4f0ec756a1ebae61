"""Which rows of a table of tests are quick."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from tests.support.checked_attributions import CHECKED


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a table that is run under both modes of the check, each row is quick under one of them, and slow under the
    other: which one follows from the row's name."""
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if Path(__file__).parent in item.path.parents and len(parameters) > 1 and parameters.get("mode") in CHECKED:
            row = item.nodeid.replace(str(parameters["mode"]), "")
            if CHECKED[zlib.crc32(row.encode()) % 2] is not parameters["mode"]:
                item.add_marker(pytest.mark.slow)
