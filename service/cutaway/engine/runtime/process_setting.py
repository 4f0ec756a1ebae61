"""Changes settings of the whole process while blocks run, also in several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class ProcessSetting(Generic[T]):
    """A setting that has another ``value`` while at least one block runs.

    The first block that begins saves the setting, and the last block that ends restores it.
    """

    def __init__(self, read: Callable[[], T], write: Callable[[T], object], value: T) -> None:
        self._read, self._write, self._value = read, write, value
        self._lock = threading.Lock()
        self._blocks = 0

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Runs a block with the changed setting."""
        with self._lock:
            if not self._blocks:
                self._saved = self._read()
                self._write(self._value)
            self._blocks += 1
        try:
            yield
        finally:
            with self._lock:
                self._blocks -= 1
                if not self._blocks:
                    self._write(self._saved)
