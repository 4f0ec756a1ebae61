"""Measures the stages of a request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from cutaway.results import Timings


@contextmanager
def timed(timings: Timings, stage: str) -> Iterator[None]:
    """Adds the wall-clock time of the block, in milliseconds, to the field ``stage`` of ``timings``."""
    start = time.perf_counter()
    try:
        yield
    finally:
        setattr(timings, stage, getattr(timings, stage) + (time.perf_counter() - start) * 1000)
