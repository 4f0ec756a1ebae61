"""Waiting for what is bound to happen, for as long as a busy machine may need."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 600.0
"""More than anything in these tests takes on a slow machine with other work: reaching it is an error by itself."""


def until(condition: Callable[[], bool], every_s: float = 0.02) -> None:
    """Waits until ``condition`` is true; fails after `PATIENCE_S`."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "what was waited for has not happened"
        time.sleep(every_s)
