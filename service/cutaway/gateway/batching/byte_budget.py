"""A limit of the bytes of all requests that are under way, and of those of one caller."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.batching.fair_queue import caller_id

_BURST_BYTES = 256 << 20
"""After so many bytes of requests, free memory goes back to the system as soon as no request is under way: glibc would
keep most of it."""


class ByteBudget:
    """The bytes that requests may have together. One request alone is always within it.

    Args:
        most: of all callers; one caller may have half of them.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[str] = Counter()
        self._passed = 0

    def require_room(self) -> None:
        """Raises ``OVERLOADED`` if nothing is left: another request need not even be read."""
        if (held := self._held.total()) >= self._most:
            raise _overloaded(held, self._most)

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Holds the bytes of a request of the current task's caller; raises ``OVERLOADED`` if they are too many."""
        caller = caller_id.get()
        for held, most in ((self._held.total(), self._most), (self._held[caller], self._most // 2)):
            if held and held + size > most:
                raise _overloaded(held, most)
        self._held[caller] += size
        try:
            yield
        finally:
            self._held[caller] -= size
            if not self._held[caller]:
                del self._held[caller]
            self._passed += size
            if self._passed > _BURST_BYTES and not self._held:
                self._passed = 0
                threading.Thread(target=_return_memory, name="cutaway-trim", daemon=True).start()


def _return_memory() -> None:
    """Returns free memory to the system; does nothing where the C library is not glibc."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _overloaded(held: int, most: int) -> CutawayError:
    what = f"requests of {held} bytes are under way, {most} are allowed at a time"
    return error(Reason.OVERLOADED, f"{what}; try again")
