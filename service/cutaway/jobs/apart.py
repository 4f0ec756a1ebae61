"""Captures beside the tables: a Zarr array a column, [rows, ...] of the whole data set, each shard in chunks of its
own. So no two shards write one chunk, and a shard that is written twice is what it was."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from cutaway.jobs.folder import Folder
from cutaway.jobs.manifest import Manifest
from cutaway.jobs.records import nothing
from cutaway.tensors import Array

_CHUNK_BYTES = 64 << 20
"""A chunk is no larger, unless a single row is: compressors take it as a whole."""


class Apart:
    """The captures of one job.

    Args:
        folder: where its results are.
        manifest: what it is; its columns are laid out.
    """

    def __init__(self, folder: Folder, manifest: Manifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._fields = {field.name: field for field in manifest.read_layout().apart}
        self._opened: dict[tuple[str, str], Any] = {}

    def make(self) -> bool:
        """Make the arrays that are not there yet; whether there were any."""
        missing = [name for name in self._fields if not self._path(name).exists()]
        for name in missing:
            self._make(name)
        return bool(missing)

    def _make(self, name: str) -> None:
        import zarr

        path, (dtype, shape) = self._path(name), _kind_of(self._fields[name].type)
        aside = path.with_name(f".{path.name}.aside")
        shutil.rmtree(aside, ignore_errors=True)  # of a run that was killed
        aside.parent.mkdir(exist_ok=True)
        row_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        zarr.open_array(
            str(aside),
            mode="w",
            shape=(self._manifest.rows, *shape),
            chunks=(_chunk_rows(self._manifest.shard_rows, row_bytes), *(max(1, size) for size in shape)),
            dtype=dtype,
            fill_value=nothing(dtype),
        )
        aside.rename(path)

    def write(self, rows: range, values: Mapping[str, Array]) -> None:
        """Write the columns of a shard, whose ``rows`` of the data set these are."""
        for name, array in values.items():
            self._array(name, "r+")[rows.start : rows.stop] = array

    def read(self, name: str, rows: range) -> Array:
        """Some rows of a column."""
        numbers: Array = np.asarray(self._array(name, "r")[rows.start : rows.stop])
        return numbers

    def _array(self, name: str, mode: Any) -> Any:
        import zarr

        if (name, mode) not in self._opened:
            self._opened[name, mode] = zarr.open_array(str(self._path(name)), mode=mode)
        return self._opened[name, mode]

    def _path(self, name: str) -> Path:
        return self._folder.captures / f"{quote(name, safe=':#[]')}.zarr"


def _kind_of(kind: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The data type and the shape of one row, of a column of Arrow type ``kind``."""
    tensor = isinstance(kind, pa.FixedShapeTensorType)
    return np.dtype((kind.value_type if tensor else kind).to_pandas_dtype()), tuple(kind.shape if tensor else ())


def _chunk_rows(shard_rows: int, row_bytes: int) -> int:
    """The most rows that a chunk can have, so that shards are whole chunks."""
    most = min(shard_rows, max(1, _CHUNK_BYTES // max(1, row_bytes)))
    return next(rows for rows in range(most, 0, -1) if shard_rows % rows == 0)
