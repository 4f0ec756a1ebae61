"""A limit of the memory that requests may take, so that one that needs too much fails by itself."""

from __future__ import annotations

import sys

import psutil


def limit_request_memory(allowed: int | None) -> None:
    """Lets this process allocate at most ``allowed`` bytes more than it has now; only on Linux, and not if None. What
    needs more raises an error that `is_out_of_memory` knows; without a limit, the kernel would end some process."""
    if allowed is None or sys.platform != "linux":
        return
    import resource

    _, hardest = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (psutil.Process().memory_info().data + allowed, hardest))
