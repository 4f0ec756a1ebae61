"""Unpacked copies of a store's archives: what serves does not change or vanish with its file."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Collection, Container
from dataclasses import dataclass
from pathlib import Path

from cutaway.contract.errors import Reason, error
from cutaway.contract.results import ModelName
from cutaway.server.archive import reader
from cutaway.server.model_store import digest_of, identity_of, manifest_of
from cutaway.server.worker_protocol import ScratchDirectory


@dataclass(frozen=True, eq=False)
class Unpacked:
    """An archive as it was when it was unpacked. Two are equal only if they are the same copy.

    Attributes:
        path: the file that it was.
        modified_ns: the time of its last change, in nanoseconds.
        digest: of its members.
        directory: the copy; its name is a number, because names of files may mean something to other programs.
        workers: the number of workers that the archive asks for.
        size: the size of the file, in bytes.
    """

    path: Path
    modified_ns: int
    digest: str
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
        self._known: list[Unpacked] = []

    def of(self, name: ModelName, path: Path, failed: Container[Unpacked]) -> Unpacked:
        """Returns a copy of the archive of model ``name`` at ``path``: the same while the file's content is, but for
        one in ``failed``, which may load if the file is put there again.

        Raises:
            CutawayError: ``ARCHIVE_CORRUPT``, also if the file changes meanwhile; ``BACKEND_UNAVAILABLE`` if there is
                no room for it.
        """
        identity = _, size, modified_ns, _ = identity_of(path)
        digest = digest_of(path)
        for each in self._known:
            if (each.path, each.digest) == (path, digest) and (each not in failed or each.modified_ns == modified_ns):
                return each
        directory = self.root / str(next(self._numbers))
        try:
            workers = self._workers or reader.workers(path)
            # Batches form in the gateway, and TorchServe passes on what it gets.
            reader.unpack(path, directory, workers=self._workers, batch=1)
            if identity_of(path) != identity or manifest_of(path).name != name:
                raise error(Reason.ARCHIVE_CORRUPT, f"{path.name} is being written")
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        self._known.append(Unpacked(path, modified_ns, digest, directory, workers, size))
        return self._known[-1]

    def keep(self, used: Collection[Unpacked]) -> None:
        """Deletes the copies that are not in ``used``."""
        for unpacked in [*self._known]:
            if unpacked not in used:
                self._known.remove(unpacked)
                shutil.rmtree(unpacked.directory, ignore_errors=True)

    def close(self) -> None:
        """Deletes all copies."""
        self._scratch.cleanup()
