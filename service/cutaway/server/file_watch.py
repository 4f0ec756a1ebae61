"""Watches for changed files: the token file, the TLS files and the archives of a model store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from cutaway.contract.errors import CutawayError

log = structlog.get_logger(__name__)

T = TypeVar("T")


class FileWatch:
    """A watch for files that are added, removed, rewritten or replaced; symbolic links are followed.

    Args:
        files: lists the files; called for every check.
        settle_s: a change is reported after the files stayed the same for so long, because a large file takes a while
            to be written.
        inodes: whether a file with another inode has changed. Tokens of one length, written within one tick of the
            clock, differ in nothing else. But some network file systems give a file a new inode at any time.
    """

    def __init__(self, files: Callable[[], Iterable[Path]], *, settle_s: float = 0.0, inodes: bool = True) -> None:
        self._files = files
        self._settle_s = settle_s
        self._inodes = inodes
        self._reported = self._latest = self._signature()
        self._since = time.monotonic()

    def changed(self) -> bool:
        """Returns True once after a change."""
        signature = self._signature()
        if signature != self._latest:
            self._latest, self._since = signature, time.monotonic()
        if self._latest == self._reported or time.monotonic() - self._since < self._settle_s:
            return False
        self._reported = self._latest
        return True

    def _signature(self) -> dict[Path, tuple[int, int, int]]:
        """Returns modification time, size and inode of the files that exist."""
        signature = {}
        for path in self._files():
            try:
                status = path.stat()
            except OSError:
                continue
            signature[path] = (status.st_mtime_ns, status.st_size, status.st_ino if self._inodes else 0)
        return signature


class ReloadedFiles(Generic[T]):
    """A value read from files, and read again after they change.

    While the changed files cannot be read (broken, or only some of them written yet), the previous value stays in use.

    Args:
        what: names the files in the log.
        paths: the files.
        read: reads the value.

    Attributes:
        value: the value as last read.
    """

    def __init__(self, what: str, paths: Iterable[Path], read: Callable[[], T]) -> None:
        self._what = what
        self._read = read
        self._watch = FileWatch(list(paths).copy)
        self.value = read()

    def refresh(self) -> bool:
        """Reads the files if they have changed; returns whether `value` is new."""
        if not self._watch.changed():
            return False
        try:
            self.value = self._read()
        except (CutawayError, OSError) as failure:
            log.error(f"{self._what} cannot be read; the previous content stays in use", why=str(failure))
            return False
        log.info(f"{self._what} changed and was read again")
        return True
