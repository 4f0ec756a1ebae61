"""Memory that a burst of requests leaves free goes back to the system."""

from __future__ import annotations

import platform

import psutil
import pytest

from cutaway.server.batching import ByteBudget
from tests.support.waiting import until

MEBIBYTE = 1 << 20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps it, and can be told to return it")
def test_free_memory_is_returned_when_a_burst_is_over() -> None:
    """Not while a request is under way, and not for a few small requests."""
    process, budget = psutil.Process(), ByteBudget(1 << 40)
    blocks = [bytes(1000) for _ in range(200_000)]
    kept = blocks[::200]  # among the others, so that glibc's heap cannot shrink by itself
    del blocks
    full = process.memory_info().rss
    with budget.hold(1):
        with budget.hold(300 * MEBIBYTE):
            pass
        assert process.memory_info().rss > full - 50 * MEBIBYTE
    until(lambda: process.memory_info().rss < full - 100 * MEBIBYTE)
    assert kept
