"""Captures outside of the tables: one Zarr array [rows, ...] of the whole data set for each column.

The chunks of a shard contain no row of another shard, so that two shards never write the same chunk, and a shard that
is written again has the same values.
"""

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
from cutaway.jobs.records import missing_value
from cutaway.schema.tensors import Array

_MAX_CHUNK_BYTES = 64 << 20
"""Compressors process a whole chunk at once; a chunk is larger only if one row is."""


class CaptureStore:
    """The Zarr arrays of one job.

    Args:
        folder: the folder of the results.
        manifest: the manifest, with columns.
    """

    def __init__(self, folder: Folder, manifest: Manifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._types = {field.name: field.type for field in manifest.read_layout().zarr_fields}
        self._opened: dict[tuple[str, str], Any] = {}

    def create(self) -> bool:
        """Creates the arrays that do not exist; returns whether there were any."""
        missing = [name for name in self._types if not self._path(name).exists()]
        for name in missing:
            self._create(name)
        return bool(missing)

    def _create(self, name: str) -> None:
        import zarr

        path, (dtype, shape) = self._path(name), _row_type(self._types[name])
        temporary = path.with_name(f".{path.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)  # of a run that was killed
        temporary.parent.mkdir(exist_ok=True)
        row_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        zarr.open_array(
            str(temporary),
            mode="w",
            shape=(self._manifest.rows, *shape),
            chunks=(_chunk_rows(self._manifest.shard_rows, row_bytes), *(max(1, size) for size in shape)),
            dtype=dtype,
            fill_value=missing_value(dtype),
        )
        temporary.rename(path)

    def write(self, rows: range, columns: Mapping[str, Array]) -> None:
        """Writes ``rows`` of the data set, by column."""
        for name, array in columns.items():
            self._array(name, "r+")[rows.start : rows.stop] = array

    def read(self, name: str, rows: range) -> Array:
        """Returns ``rows`` of a column."""
        array: Array = np.asarray(self._array(name, "r")[rows.start : rows.stop])
        return array

    def _array(self, name: str, mode: Any) -> Any:
        import zarr

        if (name, mode) not in self._opened:
            self._opened[name, mode] = zarr.open_array(str(self._path(name)), mode=mode)
        return self._opened[name, mode]

    def _path(self, name: str) -> Path:
        return self._folder.captures / f"{quote(name, safe=':#[]')}.zarr"


def _row_type(arrow: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Returns the data type and the shape of one row of a column of that Arrow type."""
    tensor = isinstance(arrow, pa.FixedShapeTensorType)
    return np.dtype((arrow.value_type if tensor else arrow).to_pandas_dtype()), tuple(arrow.shape if tensor else ())


def _chunk_rows(shard_rows: int, row_bytes: int) -> int:
    """Returns the largest number of rows for a chunk that divides a shard."""
    most = min(shard_rows, max(1, _MAX_CHUNK_BYTES // max(1, row_bytes)))
    return next(rows for rows in range(most, 0, -1) if shard_rows % rows == 0)
