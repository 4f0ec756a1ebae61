"""Data sets in the formats that people use, read range by range: see `open_source`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import NamedTuple

from cutaway.contract.errors import Reason, error
from cutaway.jobs.sources.arrays import Images, SavedDataset, open_npy, open_npz, open_zarr
from cutaway.jobs.sources.files import DataFiles, find_files
from cutaway.jobs.sources.source import Column, Source, Unreadable, check_columns
from cutaway.jobs.sources.tables import ArrowFile, CsvFile, JsonFile, ParquetFile, RecordFiles, Tables

__all__ = ["FORMATS", "Column", "Source", "Unreadable", "check_columns", "open_source"]


class Format(NamedTuple):
    """A format of data sets.

    Attributes:
        suffixes: the suffixes of its files.
        markers: for a format that is a folder, the files that identify it.
        open: opens a data set.
    """

    suffixes: tuple[str, ...]
    markers: tuple[str, ...]
    open: Callable[[DataFiles], Source]


_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")

FORMATS: dict[str, Format] = {
    "parquet": Format((".parquet", ".pq"), (), lambda files: Tables(files, ParquetFile)),
    "arrow": Format((".arrow", ".feather", ".ipc"), (), lambda files: Tables(files, ArrowFile)),
    "csv": Format((".csv", ".tsv"), (), lambda files: RecordFiles(files, CsvFile)),
    "jsonl": Format((".jsonl", ".ndjson"), (), lambda files: RecordFiles(files, JsonFile)),
    "npy": Format((".npy",), (), open_npy),
    "npz": Format((".npz",), (), open_npz),
    "zarr": Format((), ("zarr.json", ".zarray", ".zgroup"), open_zarr),
    "images": Format(_IMAGES, (), Images),
    "huggingface": Format((), ("state.json", "dataset_dict.json"), SavedDataset),
}
"""All formats by their names in ``data.format``."""


def open_source(path: str, format: str = "") -> Source:
    """Opens the data set at ``path``: a file, a folder of files or a glob, on this machine or behind an fsspec URL.

    Args:
        path: the location. Several files are one data set, in the order of their names; several NPY files are columns.
        format: one of `FORMATS`; by default derived from the names of the files.

    Raises:
        NotFound: ``DATA_NOT_FOUND``; the field is ``path``.
        InvalidArgument: ``DATA_UNREADABLE``, with the field ``path``; ``INVALID_VALUE``, with the field ``format``, if
            the format is unknown or cannot be derived.
    """
    if format and format not in FORMATS:
        raise error(Reason.INVALID_VALUE, f"there is no format {format!r}; there are {', '.join(FORMATS)}", "format")
    files = find_files(path)
    chosen = FORMATS[format or _format_of(files)]
    if not chosen.markers:  # of a named format, all visible files count if none has its suffix
        names = [name for name in files.visible if PurePosixPath(name).suffix.lower() in chosen.suffixes]
        files = files.only(names or (files.visible if files.is_folder else tuple(files.sizes)))
    return chosen.open(files)


def _format_of(files: DataFiles) -> str:
    """Returns the format that the names of the files have."""
    for name, known in FORMATS.items():
        if files.is_folder and any(marker in files.sizes for marker in known.markers):
            return name
    suffixes = {PurePosixPath(name).suffix.lower() for name in files.visible}
    formats = [name for name, known in FORMATS.items() if suffixes & set(known.suffixes)]
    if len(formats) == 1:
        return formats[0]
    content = f"it contains files of {', '.join(formats)}" if formats else f"its files end in {sorted(suffixes)}"
    message = f"the format of {files.location!r} is not clear: {content}; name one of {', '.join(FORMATS)}"
    raise error(Reason.INVALID_VALUE, message, "format")
