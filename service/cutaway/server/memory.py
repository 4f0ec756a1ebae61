"""The memory that this process may use, the share of it for requests, and a limit for one worker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_CGROUPS = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory.limit_in_bytes")  # of cgroups v2 and v1

_FOR_REQUESTS = 0.6
"""The share of all memory for requests; TorchServe's JVM may take a quarter, and the gateway needs some."""

_LOADED_BYTES = 512 << 20
"""The memory that a worker needs before its first request."""

_LEAST_BYTES = 256 << 20

_OF_MESSAGES = 24
"""The divisor of all memory that gives the bytes for requests.

A request is in memory up to six times (gRPC, gateway, JVM, worker); the copies take a quarter of the memory at most.
"""


def usable_bytes() -> int:
    """Returns the smallest limit of this process's control groups, or the machine's memory."""
    return min([psutil.virtual_memory().total, *_cgroup_limits()])


def share_of_worker(workers: int) -> int:
    """Returns the bytes for the requests of one of ``workers`` workers, so that all of them fit."""
    return max(_LEAST_BYTES, int(_FOR_REQUESTS * usable_bytes()) // workers - _LOADED_BYTES)


def share_of_requests(least: int) -> int:
    """Returns the bytes that all requests under way may have, at least ``least``."""
    return max(least, usable_bytes() // _OF_MESSAGES)


def _cgroup_limits() -> Iterator[int]:
    """Yields the limits of this process's groups and of all groups around them."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            root = _CGROUPS / controllers
            own = root / path.lstrip("/")
            groups = [group for group in (own, *own.parents) if group.is_relative_to(root)]
            for limit in [group / name for group in groups for name in _LIMITS]:
                with suppress(OSError, ValueError):  # ValueError: "max", which is no limit
                    yield int(limit.read_text())


def limit_request_memory(allowed: int | None) -> None:
    """Lets this process allocate at most ``allowed`` bytes more than it has now; only on Linux, and not if None.

    A request that needs more raises an error that `is_out_of_memory` knows. Without a limit, the kernel would end some
    process.
    """
    if allowed is None or sys.platform != "linux":
        return
    import resource

    _, hardest = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (psutil.Process().memory_info().data + allowed, hardest))
