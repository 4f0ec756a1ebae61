"""The memory that this process may use, and that of requests: a share of each worker, and a pool that workers share."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

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


def size_text(size: int) -> str:
    """Returns a number of bytes in the unit that fits: ``22.41 KiB``, ``6.81 GiB``."""
    power = min(max((size.bit_length() - 1) // 10, 1), 4)
    return f"{size / (1 << 10 * power):.2f} {' KMGT'[power]}iB"


def share_of_worker(workers: int, total: int | None = None) -> int:
    """Returns the bytes for the requests of one of ``workers`` workers, so that all of them fit.

    ``total``: the memory that the server may use; by default `usable_bytes`.
    """
    return max(_LEAST_BYTES, int(_FOR_REQUESTS * (total or usable_bytes())) // workers - _LOADED_BYTES)


class Shares(NamedTuple):
    """How the workers of a server share the memory for requests.

    Attributes:
        workers: among how many it is divided.
        own: the bytes that the requests of each have for themselves.
        pool: the bytes of the pool.
        directory: where the locks of the pool are, and of those of GPUs.
    """

    workers: int
    own: int
    pool: int
    directory: Path

    @classmethod
    def among(cls, workers: int, directory: Path, total: int | None = None) -> Shares:
        """Divides the memory; a pool is half of all shares: it serves what needs more than a worker's own.

        ``total``: the memory that the server may use; by default `usable_bytes`.
        """
        share = share_of_worker(workers, total)
        own = max(_LEAST_BYTES, share // 2)
        return cls(workers, own, (share - own) * workers, directory)


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


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h

_KEPT_BYTES = 64 << 20
_REUSED_BYTES = 32 << 20  # the most that glibc allows


def share_heap() -> None:
    """Lets all threads that start later allocate from one heap; does nothing where the C library is not glibc.

    Each of several heaps keeps a part of its pages after a burst: hundreds of MiB together. The one heap keeps those
    of messages: pages that are new for each one take ten times as long as a copy. `return_memory` returns them.
    """
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _REUSED_BYTES)


def return_memory() -> None:
    """Returns free memory to the system; does nothing where the C library is not glibc."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


_FEW_MODULES = 100
_kept_modules = 0


def keep_modules() -> None:
    """Excludes all present objects from later garbage collections.

    A collection stops every thread: for a tenth of a second with PyTorch's objects. Only for processes that serve,
    because an excluded object in a reference cycle is never freed.
    """
    global _kept_modules
    gc.collect()
    gc.freeze()
    _kept_modules = len(sys.modules)


def keep_late_modules() -> None:
    """Calls `keep_modules` again if many modules were imported since, such as scikit-learn for a first KernelShap."""
    if 0 < _kept_modules < len(sys.modules) - _FEW_MODULES:
        keep_modules()


_UNIT = 32 << 20
"""The bytes of one lock."""

_POLL_S = 0.005


class MemoryPool:
    """The memory that all workers of a server share; on Linux only.

    A reserved unit is a lock on one byte of a file. The kernel releases the locks of a process that ends.

    Args:
        path: the file, which is the same for all workers.
        size: the bytes of the pool.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.bytes = size // _UNIT * _UNIT
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @contextmanager
    def reserved(self, needed: int, waiting: Callable[[], None]) -> Iterator[int]:
        """Reserves ``needed`` bytes, or all that there are, while the block runs; yields their number.

        One worker at a time waits for units, so that many small reservations do not starve a large one.

        Args:
            needed: the bytes.
            waiting: called while others have them; an exception ends the wait.
        """
        units = range(1, self.bytes // _UNIT + 1)
        count = min(len(units), -(-needed // _UNIT))
        taken: list[int] = []
        try:
            _wait_until(lambda: self._lock(0), waiting)  # the turn to wait
            try:
                _wait_until(lambda: len(self._take(units, count, taken)) == count, waiting)
            finally:
                self._unlock(0)
            yield count * _UNIT
        finally:
            for unit in taken:
                self._unlock(unit)

    def _take(self, units: range, count: int, taken: list[int]) -> list[int]:
        taken += (unit for unit in units if unit not in taken and len(taken) < count and self._lock(unit))
        return taken

    def _lock(self, byte: int) -> bool:
        import fcntl

        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except OSError:
            return False
        return True

    def _unlock(self, byte: int) -> None:
        import fcntl

        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)


def _wait_until(done: Callable[[], bool], waiting: Callable[[], None]) -> None:
    while not done():
        waiting()
        time.sleep(_POLL_S)


@contextmanager
def _taken(lock: threading.Lock, waiting: Callable[[], None]) -> Iterator[None]:
    _wait_until(lambda: lock.acquire(blocking=False), waiting)
    try:
        yield
    finally:
        lock.release()


class RequestMemory:
    """The memory that the requests of one process may take.

    Args:
        own: the bytes that they always have.
        pool: where there is more.
        give_back: returns free memory to the system, or to a GPU.

    Attributes:
        own: the argument.
        most: the most bytes of one request.
    """

    def __init__(
        self, own: int, pool: MemoryPool | None = None, *, give_back: Callable[[], None] = return_memory
    ) -> None:
        self.own, self._pool, self._give_back = own, pool, give_back
        self.most = own if pool is None else own + pool.bytes
        self._loaded, self._base = 0, 0
        self._reserving = threading.Lock()

    @contextmanager
    def reserved(self, needed: int, waiting: Callable[[], None]) -> Iterator[int]:
        """Lets requests take ``needed`` bytes while the block runs, as far as there are so many; yields the limit.

        One request of a process at a time has more than its own: the kernel's locks do not tell its threads apart.

        ``waiting``: see `MemoryPool.reserved`.
        """
        if needed <= self.own or self._pool is None:
            yield self.own
            return
        with _taken(self._reserving, waiting), self._pool.reserved(needed - self.own, waiting) as further:
            self._limit(self.own + further)
            try:
                yield self.own + further
            finally:
                self._give_back()
                if self._loaded:  # free memory between what is in use keeps its addresses, which the limit counts
                    self._base = max(self._loaded, _data_bytes() - _STACKS.bytes)
                self._limit(self.own)

    def enforce(self) -> None:
        """Lets this process allocate no more beyond what it has now; only on Linux.

        A request that needs more raises an error that `is_out_of_memory` knows. Without a limit, the kernel would end
        some process.
        """
        if sys.platform == "linux":
            self._loaded = self._base = _data_bytes() - _STACKS.bytes
            self._limit(self.own)

    def _limit(self, allowed: int) -> None:
        """Limits this process to its memory without requests plus ``allowed`` bytes; has no effect before `enforce`."""
        if self._loaded:
            import resource

            with _LIMIT:
                _, hardest = resource.getrlimit(resource.RLIMIT_DATA)
                resource.setrlimit(resource.RLIMIT_DATA, (self._base + _STACKS.bytes + allowed, hardest))


class _Stacks:
    """The bytes of the stacks of threads that stay, which no request has taken."""

    bytes = 0


_STACKS = _Stacks()

_LIMIT = threading.Lock()


def _data_bytes() -> int:
    return int(psutil.Process().memory_info().data)


def start(thread: threading.Thread) -> None:
    """Starts ``thread``, also when requests have taken all that they may: the stack of a thread counts as well."""
    with _unlimited():
        thread.start()


@contextmanager
def starting_threads() -> Iterator[None]:
    """Lets this process start threads that stay, whatever requests have taken; their stacks take nothing from these."""
    with _unlimited(for_ever=True):
        yield


@contextmanager
def _unlimited(*, for_ever: bool = False) -> Iterator[None]:
    """Lifts the memory limit of this process while the block runs.

    ``for_ever``: the limit is afterwards higher by the bytes that the block has allocated.
    """
    if sys.platform != "linux":
        yield
        return
    import resource

    with _LIMIT:
        limit, hardest = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hardest, hardest))
        before = _data_bytes() if for_ever else 0
        try:
            yield
        finally:
            more = max(0, _data_bytes() - before) if for_ever else 0
            _STACKS.bytes += more
            if limit != resource.RLIM_INFINITY:
                limit += more if hardest == resource.RLIM_INFINITY else min(more, hardest - limit)
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hardest))
