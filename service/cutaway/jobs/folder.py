"""The output folder of a job. Each file is written under another name and renamed, so that it is always complete.

part-00042.parquet    one shard
_manifest.json        the provenance of the results
_captures/            captures in Zarr arrays
_report.html          the report
.lock                 locked by the run that writes

Readers of Parquet folders (pandas, Spark, Arrow) skip names that begin with `_` or `.`. In folders of earlier versions,
the manifest and the captures have names without `_`; they are read and continued as they are.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from cutaway.errors import Reason, error

_PART = re.compile(r"part-(\d+)\.parquet")
_TEMPORARY = ".tmp"


class Folder:
    """The files of one job.

    Args:
        path: the folder.

    Attributes:
        manifest: the path of the manifest.
        captures: the path of the Zarr arrays.
        report: the path of the report.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        mark = "" if (path / "manifest.json").is_file() else "_"
        self.manifest = path / f"{mark}manifest.json"
        self.captures = path / f"{mark}captures"
        self.report = path / "_report.html"

    def part(self, shard: int) -> Path:
        """Returns the path of a shard."""
        return self.path / f"part-{shard:05d}.parquet"

    def parts(self) -> dict[int, Path]:
        """Returns the shards on disk by number, in order."""
        matches = [(match, path) for path in self.path.glob("part-*") if (match := _PART.fullmatch(path.name))]
        return dict(sorted((int(match[1]), path) for match, path in matches))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Creates the folder if needed and locks it against other runs while the block runs.

        Raises:
            FailedPrecondition: ``FOLDER_TAKEN``: another run has locked it, or it has files of no job.
        """
        self._create()
        with (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise error(Reason.FOLDER_TAKEN, f"another run is writing into {self.path}", "output.folder") from None
            for path in self.path.glob(f".*{_TEMPORARY}"):  # of a run that was killed
                path.unlink(missing_ok=True)
            yield

    def _create(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            names = [path.name for path in self.path.iterdir() if not path.name.startswith(".")]
        except OSError as failure:
            what = f"{self.path} cannot be created: {failure.strerror}"
            raise error(Reason.FOLDER_TAKEN, what, "output.folder") from None
        if names and not self.manifest.is_file():
            what = f"{self.path} contains {min(names)} and no job: name a new folder"
            raise error(Reason.FOLDER_TAKEN, what, "output.folder")

    def write(self, path: Path, fill: Callable[[Path], object]) -> None:
        """Lets ``fill`` write a temporary file, and renames it to ``path`` when it is complete and on disk."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")
        try:
            fill(temporary)
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)  # for the new name
        finally:
            os.close(directory)
