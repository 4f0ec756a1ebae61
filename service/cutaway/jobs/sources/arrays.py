"""Data sets of arrays (NPY, NPZ, Zarr, Hugging Face data sets on disk) and of images in a folder."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.tensors import check_npy
from cutaway.jobs.sources.files import DataFiles, FileSource, read_errors
from cutaway.jobs.sources.source import Column, Unreadable, check_columns, from_arrow


class Arrays(FileSource):
    """Arrays of numpy or Zarr with the rows on axis 0; every array is a column.

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


def _mapped(path: Path) -> Any:
    with path.open("rb") as file:
        check_npy(file)
    return np.load(path, mmap_mode="r", allow_pickle=False)


def open_npy(files: DataFiles) -> Arrays:
    """Opens NPY files and maps them into memory; a file is a column with the file's name."""
    arrays = {}
    for name in files.sizes:
        with read_errors(f"{name!r} in {files.location!r}"):
            arrays[PurePosixPath(name).stem] = _mapped(files.local(name))
    return Arrays(files, arrays)


def open_npz(files: DataFiles) -> Arrays:
    """Opens an NPZ file; unpacks its arrays to disk, since nothing inside a zip can be mapped into memory."""
    if len(files.sizes) > 1:
        raise error(Reason.DATA_UNREADABLE, f"{files.location!r} is several NPZ files: name one", "path")
    folder = files.temporary()
    arrays = {}
    with read_errors(f"{files.location!r}"), zipfile.ZipFile(files.local(next(iter(files.sizes)))) as archive:
        for member in archive.namelist():
            arrays[member.removesuffix(".npy")] = _mapped(Path(archive.extract(member, folder)))
    return Arrays(files, arrays)


def open_zarr(files: DataFiles) -> Arrays:
    """Opens a Zarr array, as a column with the name of its folder, or a group of arrays."""
    import zarr

    with read_errors(f"{files.location!r}"):
        opened = zarr.open(files.location, mode="r")
        return Arrays(files, dict(opened.arrays()) if isinstance(opened, zarr.Group) else {files.title: opened})


class SavedDataset(FileSource):
    """A Hugging Face data set that ``save_to_disk`` wrote, mapped into memory; images are the bytes of their files.

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


class Images(FileSource):
    """A folder of images, in the order of their names, as bytes that the model's adapter decodes.

    A file that cannot be read is one bad row.

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
        readers: dict[str, Callable[[str], Any]] = {"image": self._bytes, "name": _utf8, "label": _label}
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
    return _utf8(parts[0]) if len(parts) > 1 else Unreadable("the image is in no sub-folder, which would be its label")


def _utf8(name: str) -> str:
    """Returns a file's name as valid UTF-8; the name itself may be any bytes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
