"""A folder of images: the bytes of each file, which the model's adapter decodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any

from cutaway.errors import CutawayError
from cutaway.jobs.sources.files import DataFiles, FileSource, read_errors
from cutaway.jobs.sources.source import Column, Unreadable, check_columns


class Images(FileSource):
    """Images in the order of their names. A file that cannot be read is one bad row.

    Attributes:
        rows: the number of images in all sub-folders.
        columns: ``image`` (bytes), ``name`` (path in the folder) and, if there are sub-folders, ``label`` (the first
            sub-folder).
    """

    def __init__(self, files: DataFiles) -> None:
        super().__init__(files)
        self._names = tuple(files.sizes)
        self.rows = len(self._names)
        labelled = any(len(PurePosixPath(name).parts) > 1 for name in self._names)
        self.columns: tuple[str, ...] = ("image", "name", "label") if labelled else ("image", "name")

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Column]:
        """Returns the images [start, stop)."""
        check_columns(columns, self.columns)
        readers: dict[str, Callable[[str], Any]] = {"image": self._bytes, "name": _text, "label": _label}
        return {column: [readers[column](name) for name in self._names[start:stop]] for column in columns}

    def _bytes(self, name: str) -> bytes | Unreadable:
        try:
            with read_errors(repr(name)):
                data: bytes = self._files.system.cat_file(self._files.path(name))
        except CutawayError as failure:
            return Unreadable(failure.message)
        return data or Unreadable(f"{name!r} is empty")


def _label(name: str) -> str | Unreadable:
    parts = PurePosixPath(name).parts
    return _text(parts[0]) if len(parts) > 1 else Unreadable("the image is in no sub-folder, which would be its label")


def _text(name: str) -> str:
    """Returns a file's name as valid UTF-8; the name itself may be any bytes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
