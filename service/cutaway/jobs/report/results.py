"""A job's folder, read a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from cutaway.errors import Reason, error
from cutaway.jobs.apart import Apart
from cutaway.jobs.folder import Folder
from cutaway.jobs.manifest import Manifest


class Results:
    """What a job has written so far.

    Args:
        path: its folder.

    Attributes:
        folder: where it lies.
        manifest: what the job is.
        columns: what each column holds, in the order of the tables.

    Raises:
        InvalidArgument: ``DATA_UNREADABLE``: no job lies there, or no shard of it is written yet.
    """

    def __init__(self, path: Path) -> None:
        self.folder = Folder(path)
        self.manifest = Manifest.load(self.folder)
        self._parts = self.folder.parts()
        if not self._parts:
            raise error(Reason.DATA_UNREADABLE, f"{path} holds no shard yet: run the job first", "folder")
        layout = self.manifest.read_layout()
        self._schema = layout.schema
        self._stored = {field.name for field in layout.apart}
        self._apart = Apart(self.folder, self.manifest)
        self.columns = {name: self.manifest.columns[name] for name in self._schema.names}

    @property
    def shards(self) -> int:
        """How many shards are there; all, of a job that ended."""
        return len(self._parts)

    def of_kind(self, *kinds: str) -> dict[str, dict[str, str]]:
        """The columns of these kinds, and what is said of each: its attribution, layer, point, ..."""
        return {name: words for name, words in self.columns.items() if words["kind"] in kinds}

    def type(self, name: str) -> Any:
        """The Arrow type of a column."""
        return self._schema.field(name).type

    def class_name(self, index: int | None) -> str:
        """What the model calls its class ``index``."""
        labels = self.manifest.labels
        return "" if index is None else labels[index] if 0 <= index < len(labels) else str(index)

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[Any]:
        """All shards in order, in record batches of at most ``rows`` rows."""
        stored = [name for name in columns if name in self._stored]
        tabular = [name for name in columns if name not in self._stored]
        for shard, path in self._parts.items():
            start = self.manifest.range(shard).start
            try:
                file = parquet.ParquetFile(path, memory_map=True, pre_buffer=False)
                for batch in file.iter_batches(rows, columns=tabular):
                    yield self._with(batch, stored, range(start, start + len(batch)))
                    start += len(batch)
            except (OSError, ValueError) as failure:
                raise error(Reason.DATA_UNREADABLE, f"{path.name} cannot be read: {failure}", "folder") from failure

    def _with(self, batch: Any, stored: Sequence[str], rows: range) -> Any:
        """``batch`` with those columns of its ``rows`` that are in no table."""
        for name in stored:
            numbers = np.ascontiguousarray(self._apart.read(name, rows))
            tensors = numbers.ndim > 1
            column = pa.FixedShapeTensorArray.from_numpy_ndarray(numbers) if tensors else pa.array(numbers)
            batch = batch.append_column(name, column)
        return batch
