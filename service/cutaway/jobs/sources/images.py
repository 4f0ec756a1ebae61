"""A folder of pictures: the bytes of each file, for the model's own adapter to decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any

from cutaway.errors import CutawayError
from cutaway.jobs.sources.places import Place, Placed, readable
from cutaway.jobs.sources.source import Column, Unreadable, check_columns

_IN_NONE = Unreadable("the picture lies in no sub-folder, which would be its label")


class Images(Placed):
    """Columns ``image`` (bytes), ``name`` (path in the folder), and, where there are sub-folders, ``label`` (the
    first of them). A file that cannot be read is one bad row."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._names = tuple(place.sizes)
        self._labelled = any(len(PurePosixPath(name).parts) > 1 for name in self._names)

    @property
    def rows(self) -> int:
        """How many pictures there are, in all sub-folders."""
        return len(self._names)

    @property
    def columns(self) -> tuple[str, ...]:
        """What is known of each picture."""
        return ("image", "name", "label") if self._labelled else ("image", "name")

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Column]:
        """The pictures [start, stop), in the order of their names."""
        check_columns(columns, self.columns)
        names = self._names[start:stop]
        known: dict[str, Callable[[str], Any]] = {"image": self._bytes, "name": _text, "label": _label}
        return {column: [known[column](name) for name in names] for column in columns}

    def _bytes(self, name: str) -> bytes | Unreadable:
        try:
            with readable(repr(name)):
                data: bytes = self._place.system.cat_file(self._place.path(name))
        except CutawayError as failure:
            return Unreadable(failure.message)
        return data or Unreadable(f"{name!r} is empty")


def _label(name: str) -> str | Unreadable:
    parts = PurePosixPath(name).parts
    return _text(parts[0]) if len(parts) > 1 else _IN_NONE


def _text(name: str) -> str:
    """A name that can be written as UTF-8; a file's own may hold any bytes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
