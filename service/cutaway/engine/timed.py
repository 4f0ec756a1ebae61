"""Where the time goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from cutaway.results import Timings


@contextmanager
def timed(timings: Timings, stage: str) -> Iterator[None]:
    """Add the block's wall-clock time to one stage, in milliseconds."""
    start = time.perf_counter()
    try:
        yield
    finally:
        setattr(timings, stage, getattr(timings, stage) + (time.perf_counter() - start) * 1000)
