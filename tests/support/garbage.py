"""Without garbage collection: what circles of references hold stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage in the block."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
