"""Hugging Face data sets, as ``save_to_disk`` leaves them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from cutaway.errors import Reason, error
from cutaway.jobs.sources.columns import from_arrow
from cutaway.jobs.sources.places import Place, Placed, readable
from cutaway.jobs.sources.source import Column, check_columns


class Saved(Placed):
    """A data set on disk, mapped into memory; pictures come as the bytes that they were saved as."""

    def __init__(self, place: Place) -> None:
        import datasets

        if "dataset_dict.json" in place.sizes:
            splits = json.loads(place.system.cat_file(place.path("dataset_dict.json")))["splits"]
            message = f"{place.location!r} has several splits: name the folder of one of {', '.join(splits)}"
            raise error(Reason.DATA_UNREADABLE, message, "path")
        super().__init__(place)
        with readable(f"{place.location!r}"):
            self._data: Any = datasets.load_from_disk(str(_local(place))).with_format("arrow")

    @property
    def rows(self) -> int:
        """How many examples there are."""
        return len(self._data)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its features."""
        return tuple(self._data.column_names)

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Column]:
        """The examples [start, stop)."""
        check_columns(columns, self.columns)
        with readable(f"{self._place.location!r}"):
            table = self._data.select_columns(list(columns))[start:stop]
        return {name: from_arrow(table.column(name)) for name in columns}


def _local(place: Place) -> Path:
    """The folder on this machine: itself, or a copy."""
    if isinstance(place.system, LocalFileSystem):
        return Path(place.root)
    folder = place.scratch()
    with readable(f"{place.location!r}"):
        for name in place.sizes:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            place.system.get_file(place.path(name), str(folder / name))
    return folder
