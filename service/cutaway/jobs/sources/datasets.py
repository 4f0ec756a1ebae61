"""Hugging Face data sets that ``save_to_disk`` wrote."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cutaway.errors import Reason, error
from cutaway.jobs.sources.columns import from_arrow
from cutaway.jobs.sources.files import DataFiles, FileSource, read_errors
from cutaway.jobs.sources.source import Column, check_columns


class SavedDataset(FileSource):
    """A data set on disk, mapped into memory; images are the bytes of their files.

    Attributes:
        rows: the number of examples.
        columns: the names of its features.
    """

    def __init__(self, files: DataFiles) -> None:
        import datasets

        if "dataset_dict.json" in files.sizes:
            splits = json.loads(files.system.cat_file(files.path("dataset_dict.json")))["splits"]
            message = f"{files.location!r} has several splits: name the folder of one of {', '.join(splits)}"
            raise error(Reason.DATA_UNREADABLE, message, "path")
        super().__init__(files)
        with read_errors(f"{files.location!r}"):
            self._data: Any = datasets.load_from_disk(str(files.local_folder())).with_format("arrow")
        self.rows = len(self._data)
        self.columns: tuple[str, ...] = tuple(self._data.column_names)

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Column]:
        """Returns the examples [start, stop)."""
        check_columns(columns, self.columns)
        with read_errors(f"{self._files.location!r}"):
            table = self._data.select_columns(list(columns))[start:stop]
        return {name: from_arrow(table.column(name)) for name in columns}
