"""A job's results as numpy arrays, column by column or shard by shard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from cutaway.errors import Reason, error
from cutaway.jobs.apart import Apart
from cutaway.jobs.folder import Folder
from cutaway.jobs.manifest import Manifest
from cutaway.tensors import Array


def read(folder: Path | str) -> Results:
    """The results of the job that writes, or wrote, into ``folder``.

    Raises:
        InvalidArgument: ``DATA_UNREADABLE``: there is no job.
    """
    return Results(Folder(Path(folder)))


class Results(Mapping[str, Array]):
    """Columns by name, each read when it is asked for: ``results["saliency.image"]`` is [rows, ...].

    Where a row has no value, a fraction is NaN and a text None; a column of whole numbers is then a masked array. A
    ragged tensor is an object array of arrays, or None.

    Attributes:
        manifest: what the job is and where its numbers come from.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.manifest = Manifest.load(folder)
        layout = self.manifest.read_layout()
        self._schema = layout.schema
        self._stored = {field.name for field in layout.apart}
        self._apart = Apart(self._folder, self.manifest)

    @property
    def rows(self) -> int:
        """How many rows are there; fewer than the data set has while the job is not done."""
        return sum(parquet.read_metadata(path).num_rows for path in self._folder.parts().values())

    @property
    def complete(self) -> bool:
        """Whether every shard is there."""
        return len(self._folder.parts()) == self.manifest.shards

    def about(self, column: str) -> dict[str, str]:
        """What a column holds, in words: ``kind``, and with it ``attribution``, ``method``, ``layer``, ..."""
        return self.manifest.columns[column]

    def find(self, **words: str) -> list[str]:
        """The columns of which all ``words`` hold: ``find(kind="attribution", method="Saliency")``."""
        return [name for name, about in self.manifest.columns.items() if words.items() <= about.items()]

    def shards(self, columns: Sequence[str] = ()) -> Iterator[dict[str, Array]]:
        """Some columns, by default all, of one shard after the other; the memory it takes is that of a shard."""
        wanted = [self._known(name) for name in columns or self]
        tabular = [name for name in wanted if name not in self._stored]
        for shard, path in self._folder.parts().items():
            table = parquet.read_table(path, columns=tabular)
            stored = {name: self._captured(name, [shard]) for name in wanted if name in self._stored}
            yield {name: stored[name] if name in stored else _array(table[name]) for name in wanted}

    def __getitem__(self, column: str) -> Array:
        parts = self._folder.parts()
        if column in self._stored:
            return self._captured(column, list(parts))
        tables = [parquet.read_table(path, columns=[self._known(column)]) for path in parts.values()]
        return _array(pa.concat_tables(tables or [self._schema.empty_table()])[column])

    def _captured(self, column: str, shards: Sequence[int]) -> Array:
        """A column that is no table's, of some shards; bad rows have no value."""
        ranges = [self.manifest.range(shard) for shard in shards] or [range(0)]
        paths = [self._folder.part(shard) for shard in shards]
        bad = [np.asarray(parquet.read_table(path, columns=["error"])["error"].is_valid()) for path in paths]
        numbers = np.concatenate([self._apart.read(column, each) for each in ranges])
        return _without(numbers, np.concatenate([np.empty(0, bool), *bad]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._schema.names)

    def __len__(self) -> int:
        return len(self._schema.names)

    def __repr__(self) -> str:
        return f"Results({str(self._folder.path)!r}, rows={self.rows}, columns={len(self)})"

    def _known(self, column: str) -> str:
        if column not in self._schema.names:
            known = ", ".join(self._schema.names)
            raise error(Reason.COLUMN_NOT_FOUND, f"the results have no column {column!r}; they have {known}")
        return column


def _array(column: Any) -> Array:
    """A `pyarrow.ChunkedArray` as numpy."""
    kind = column.type
    if isinstance(kind, pa.FixedShapeTensorType):
        return _filled(column.combine_chunks(), kind)
    if pa.types.is_struct(kind):
        return _objects([_tensor(each, kind) for each in column.to_pylist()])
    if pa.types.is_list(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _objects(column.to_pylist())
    return _numbers(column)


def _filled(array: Any, kind: Any) -> Array:
    whole = pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
    missing = np.asarray(whole.is_null())
    storage = whole.storage
    flat = storage.values.slice(
        storage.offset * kind.storage_type.list_size, len(storage) * kind.storage_type.list_size
    )
    numbers = np.array(flat.fill_null(0).to_numpy(zero_copy_only=False)).reshape(len(whole), *kind.shape)
    return _without(numbers, missing)


def _numbers(column: Any) -> Array:
    missing = np.asarray(column.is_null())
    kind = column.type
    filled = (
        column if not missing.any() else column.fill_null(pa.scalar(False if pa.types.is_boolean(kind) else 0, kind))
    )
    return _without(np.array(filled.to_numpy()), missing)


def _without(numbers: Array, missing: Array) -> Array:
    """``numbers`` with nothing in the rows that are ``missing``."""
    if not missing.any():
        return numbers
    if numbers.dtype.kind == "f":
        numbers[missing] = np.nan
        return numbers
    masked: Array = np.ma.masked_array(numbers)
    masked[missing] = np.ma.masked
    return masked


def _tensor(each: Mapping[str, Any] | None, kind: Any) -> Array | None:
    if each is None:
        return None
    dtype = kind.field("values").type.value_type.to_pandas_dtype()
    numbers: Array = np.array(each["values"], dtype).reshape(each["shape"])
    return numbers


def _objects(values: Sequence[Any]) -> Array:
    found = np.empty(len(values), object)
    for row, value in enumerate(values):
        found[row] = value
    return found
