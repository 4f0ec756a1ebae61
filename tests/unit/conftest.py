"""What unit tests share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Runs the tests marked ``anyio``, which are coroutines, in an event loop of asyncio."""
    return "asyncio"
