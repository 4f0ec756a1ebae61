"""Memory that a burst of requests leaves free goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import psutil
import pytest

from cutaway.server.batching import ByteBudget
from tests.support.waiting import until

MEBIBYTE = 1 << 20


ON_GLIBC = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc keeps it, and can be told to return it"
)


@ON_GLIBC
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


HEAPS = """
import ctypes, sys, threading
from cutaway.server.memory import share_heap
if sys.argv[1] == "one":
    share_heap()
allocated = threading.Barrier(5)
def allocate():
    blocks = [bytes(1000) for _ in range(1000)]
    allocated.wait()
threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
allocated.wait()
libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


@ON_GLIBC
@pytest.mark.parametrize("heaps", ["one", "many"])
def test_threads_share_a_heap(heaps: str) -> None:
    """After it is asked for; by itself glibc makes one for a thread that finds the others in use."""
    shown = subprocess.run([sys.executable, "-c", HEAPS, heaps], capture_output=True, text=True, check=True).stdout
    assert ('<heap nr="1">' in shown) == (heaps == "many")
