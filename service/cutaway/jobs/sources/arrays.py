"""Arrays with the rows on axis 0, in NPY, NPZ and Zarr files. Each array is a column."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from cutaway.errors import Reason, error
from cutaway.jobs.sources.files import DataFiles, FileSource, read_errors
from cutaway.jobs.sources.source import Column, check_columns


class Arrays(FileSource):
    """Arrays by name, of numpy or Zarr.

    Attributes:
        columns: the names of the arrays.
        rows: the length of axis 0, the same for all arrays.
    """

    def __init__(self, files: DataFiles, arrays: Mapping[str, Any]) -> None:
        super().__init__(files)
        self._arrays = arrays
        lengths = {array.shape[0] if array.ndim else None for array in arrays.values()}
        if len(lengths) != 1 or None in lengths:
            shapes = ", ".join(f"{name!r} {array.shape}" for name, array in arrays.items()) or "none"
            message = f"the arrays of {files.location!r} must have the same length on axis 0: {shapes}"
            raise error(Reason.DATA_UNREADABLE, message, "path")
        self.columns: tuple[str, ...] = tuple(arrays)
        self.rows = int(next(iter(arrays.values())).shape[0])

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Column]:
        """Returns copies of the rows [start, stop), which keep no file mapped."""
        check_columns(columns, self.columns)
        with read_errors(f"{self._files.location!r}"):
            return {name: _column(self._arrays[name][start:stop]) for name in columns}


def _column(values: Any) -> Column:
    array = np.array(values)
    if array.dtype.kind in "SUT":
        texts: list[Any] = array.tolist()
        return texts
    return array


def open_npy(files: DataFiles) -> Arrays:
    """Opens NPY files, each a column with the name of its file; maps them into memory."""
    arrays = {}
    for name in files.sizes:
        with read_errors(f"{name!r} in {files.location!r}"):
            arrays[PurePosixPath(name).stem] = np.load(files.local(name), mmap_mode="r", allow_pickle=False)
    return Arrays(files, arrays)


def open_npz(files: DataFiles) -> Arrays:
    """Opens an NPZ file; unpacks its arrays to disk, since nothing inside a zip can be mapped into memory."""
    if len(files.sizes) > 1:
        raise error(Reason.DATA_UNREADABLE, f"{files.location!r} is several NPZ files: name one", "path")
    folder = files.temporary()
    arrays = {}
    with read_errors(f"{files.location!r}"), zipfile.ZipFile(files.local(next(iter(files.sizes)))) as archive:
        for member in archive.namelist():
            path = archive.extract(member, folder)
            arrays[member.removesuffix(".npy")] = np.load(path, mmap_mode="r", allow_pickle=False)
    return Arrays(files, arrays)


def open_zarr(files: DataFiles) -> Arrays:
    """Opens a Zarr array, as a column with the name of its folder, or a group of arrays."""
    import zarr

    with read_errors(f"{files.location!r}"):
        opened = zarr.open(files.location, mode="r")
        return Arrays(files, dict(opened.arrays()) if isinstance(opened, zarr.Group) else {files.title: opened})
