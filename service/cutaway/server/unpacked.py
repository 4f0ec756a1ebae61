"""Unpacked copies of a store's archives: what serves does not change or vanish with its file."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from cutaway.contract.errors import Reason, error
from cutaway.contract.results import ModelName
from cutaway.server.archive import reader
from cutaway.server.model_store import manifest_of
from cutaway.server.worker_protocol import ScratchDirectory


@dataclass(frozen=True, eq=False)
class Unpacked:
    """An archive as it was when it was unpacked. Two are equal only if they are the same copy.

    Attributes:
        path: the file that it was.
        directory: the copy; its name is a number, because names of files may mean something to other programs.
        workers: the number of workers that the archive asks for.
        size: the size of the file, in bytes.
    """

    path: Path
    directory: Path
    workers: int
    size: int


class UnpackedArchives:
    """The copies of a server; they are deleted by `keep` and `close`.

    Attributes:
        root: the directory with all of them.
    """

    def __init__(self, workers: int | None) -> None:
        """``workers``, if not None, replaces the archives' own numbers of workers."""
        self._scratch = ScratchDirectory()
        self.root = Path(self._scratch.name)
        self._workers = workers
        self._numbers = itertools.count(1)
        self._known: dict[tuple[Path, int, int], Unpacked] = {}

    def of(self, name: ModelName, path: Path) -> Unpacked:
        """Returns a copy of the archive of model ``name`` at ``path``: the same while the file's size and time are.

        Raises:
            CutawayError: ``ARCHIVE_CORRUPT``, also if the file changes meanwhile; ``BACKEND_UNAVAILABLE`` if there is
                no room for it.
        """
        key = _identity(path)
        if key not in self._known:
            directory = self.root / str(next(self._numbers))
            try:
                workers = self._workers or reader.workers(path)
                # Batches form in the gateway, and TorchServe passes on what it gets.
                reader.unpack(path, directory, workers=self._workers, batch=1)
                if _identity(path) != key or manifest_of(path).name != name:
                    raise error(Reason.ARCHIVE_CORRUPT, f"{path.name} is being written")
            except BaseException:
                shutil.rmtree(directory, ignore_errors=True)
                raise
            self._known[key] = Unpacked(path, directory, workers, key[1])
        return self._known[key]

    def keep(self, used: Collection[Unpacked]) -> None:
        """Deletes the copies that are not in ``used``."""
        for key, unpacked in [*self._known.items()]:
            if unpacked not in used:
                del self._known[key]
                shutil.rmtree(unpacked.directory, ignore_errors=True)

    def close(self) -> None:
        """Deletes all copies."""
        self._scratch.cleanup()


def _identity(path: Path) -> tuple[Path, int, int]:
    status = path.stat()
    return path, status.st_size, status.st_mtime_ns
