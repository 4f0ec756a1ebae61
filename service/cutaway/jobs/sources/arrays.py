"""Arrays with the row on axis 0: NPY, NPZ and Zarr. Each array is a column."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from cutaway.errors import Reason, error
from cutaway.jobs.sources.places import Place, Placed, readable
from cutaway.jobs.sources.source import Column, check_columns


class Arrays(Placed):
    """Arrays of equally many rows, by name; anything that can be sliced and becomes numpy then."""

    def __init__(self, place: Place, arrays: Mapping[str, Any]) -> None:
        super().__init__(place)
        self._arrays = arrays
        lengths = {name: array.shape[0] if array.ndim else None for name, array in arrays.items()}
        if len(set(lengths.values())) != 1 or None in lengths.values():
            told = ", ".join(f"{name!r} {array.shape}" for name, array in arrays.items()) or "none"
            message = f"the arrays of {place.location!r} must have as many rows as each other: {told}"
            raise error(Reason.DATA_UNREADABLE, message, "path")
        self._rows = int(next(iter(arrays.values())).shape[0])

    @property
    def rows(self) -> int:
        """The length of axis 0."""
        return self._rows

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the arrays."""
        return tuple(self._arrays)

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Column]:
        """The rows [start, stop): a copy, so that nothing of the file stays mapped for its sake."""
        check_columns(columns, self.columns)
        with readable(f"{self._place.location!r}"):
            return {name: _column(self._arrays[name][start:stop]) for name in columns}


def _column(values: Any) -> Column:
    array = np.array(values)
    if array.dtype.kind in "SUT":
        items: list[Any] = array.tolist()
        return items
    return array


def open_npy(place: Place) -> Arrays:
    """NPY files, each a column with the name of its file; mapped into memory."""
    return Arrays(place, {PurePosixPath(name).stem: _mapped(place, name) for name in place.sizes})


def _mapped(place: Place, name: str) -> Any:
    with readable(f"{name!r} in {place.location!r}"):
        return np.load(place.local(name), mmap_mode="r", allow_pickle=False)


def open_npz(place: Place) -> Arrays:
    """An NPZ file: its members are unpacked to disk once, because inside a zip nothing can be mapped into memory."""
    if len(place.sizes) > 1:
        raise error(Reason.DATA_UNREADABLE, f"{place.location!r} is several NPZ files: name one", "path")
    name = next(iter(place.sizes))
    folder = place.scratch()
    arrays = {}
    with readable(f"{place.location!r}"), zipfile.ZipFile(place.local(name)) as archive:
        for index, member in enumerate(archive.namelist()):
            path = folder / f"{index}.npy"
            with archive.open(member) as packed, path.open("wb") as file:
                shutil.copyfileobj(packed, file, 2**20)
            arrays[member.removesuffix(".npy")] = np.load(path, mmap_mode="r", allow_pickle=False)
    return Arrays(place, arrays)


def open_zarr(place: Place) -> Arrays:
    """A Zarr array, as a column with the name of its folder, or a group of arrays; read by chunks."""
    import zarr

    with readable(f"{place.location!r}"):
        found = zarr.open(place.location, mode="r")
        if isinstance(found, zarr.Group):
            return Arrays(place, dict(found.arrays()))
        return Arrays(place, {place.title: found})
