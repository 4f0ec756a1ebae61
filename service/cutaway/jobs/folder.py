"""The output folder of a job: one file a shard, written aside and renamed, so that what is there is whole.

manifest.json         what the job is
part-00042.parquet    one shard
captures/             captures that go to Zarr
.lock                 held by the run that writes
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from cutaway.errors import Reason, error

MANIFEST = "manifest.json"
_PART = re.compile(r"part-(\d+)\.parquet")
_ASIDE = ".aside"


class Folder:
    """One job's results on disk.

    Args:
        path: where they lie.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def manifest(self) -> Path:
        """What the job is."""
        return self.path / MANIFEST

    @property
    def captures(self) -> Path:
        """Where captures are that stand in no table."""
        return self.path / "captures"

    def part(self, shard: int) -> Path:
        """Where the shard of that number is, or will be."""
        return self.path / f"part-{shard:05d}.parquet"

    def parts(self) -> dict[int, Path]:
        """The shards that are there, by their number, in order."""
        found = [(match, path) for path in self.path.glob("part-*") if (match := _PART.fullmatch(path.name))]
        return dict(sorted((int(match[1]), path) for match, path in found))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Made if it is not there, and written by nobody else while the block runs.

        Raises:
            FailedPrecondition: ``FOLDER_TAKEN``: another run writes there, or something else lies there.
        """
        self._make()
        with (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise error(Reason.FOLDER_TAKEN, f"another run is writing into {self.path}", "output.folder") from None
            self._sweep()
            yield

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            others = [each.name for each in self.path.iterdir() if not each.name.startswith(".")]
        except OSError as failure:
            what = f"{self.path} cannot be made: {failure.strerror}"
            raise error(Reason.FOLDER_TAKEN, what, "output.folder") from None
        if others and not self.manifest.is_file():
            raise error(
                Reason.FOLDER_TAKEN, f"{self.path} holds {min(others)}, and no job: name a new folder", "output.folder"
            )

    def _sweep(self) -> None:
        """Throw away what a run that was killed had written aside."""
        for path in self.path.glob(f".*{_ASIDE}"):
            path.unlink(missing_ok=True)

    def write(self, path: Path, fill: Callable[[Path], object]) -> None:
        """Have ``fill`` write a file that becomes ``path`` when it is whole, and on disk."""
        aside = path.with_name(f".{path.name}.{os.getpid()}{_ASIDE}")
        try:
            fill(aside)
            with aside.open("rb+") as written:
                os.fsync(written.fileno())
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        _sync(path.parent)


def _sync(directory: Path) -> None:
    """Have the directory itself on disk, and with it the names in it."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
