"""Data sets as people have them, read range by range: see `open_source`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import NamedTuple

from cutaway.errors import Reason, error
from cutaway.jobs.sources.arrays import open_npy, open_npz, open_zarr
from cutaway.jobs.sources.datasets import Saved
from cutaway.jobs.sources.images import Images
from cutaway.jobs.sources.lines import CsvFile, JsonFile, Lines
from cutaway.jobs.sources.places import Place, find
from cutaway.jobs.sources.source import Column, Source, Unreadable, check_columns
from cutaway.jobs.sources.tables import ArrowFile, ParquetFile, Tables

__all__ = ["FORMATS", "Column", "Source", "Unreadable", "check_columns", "open_source"]


class Format(NamedTuple):
    """A way to store a data set: the suffixes of its files, what its folder holds, and what opens it."""

    suffixes: tuple[str, ...]
    marks: tuple[str, ...]
    open: Callable[[Place], Source]


_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")

FORMATS: dict[str, Format] = {
    "parquet": Format((".parquet", ".pq"), (), lambda place: Tables(place, ParquetFile)),
    "arrow": Format((".arrow", ".feather", ".ipc"), (), lambda place: Tables(place, ArrowFile)),
    "csv": Format((".csv", ".tsv"), (), lambda place: Lines(place, CsvFile)),
    "jsonl": Format((".jsonl", ".ndjson"), (), lambda place: Lines(place, JsonFile)),
    "npy": Format((".npy",), (), open_npy),
    "npz": Format((".npz",), (), open_npz),
    "zarr": Format((), ("zarr.json", ".zarray", ".zgroup"), open_zarr),
    "images": Format(_PICTURES, (), Images),
    "huggingface": Format((), ("state.json", "dataset_dict.json"), Saved),
}
"""Every format by the name that ``data.format`` takes. One with marks is a folder in which one of them lies."""


def open_source(path: str, format: str = "") -> Source:
    """The data set at ``path``: a file, a folder of files or a glob, on this machine or behind an fsspec URL.

    Args:
        path: where it is. Several files are one data set, in the order of their names; several NPY files are columns.
        format: one of `FORMATS`; found from the names of the files where it is ``""``.

    Raises:
        NotFound: ``DATA_NOT_FOUND``; the field is ``path``.
        InvalidArgument: ``DATA_UNREADABLE``, with the field ``path``; ``INVALID_VALUE``, with the field ``format``, for
            a format that is unknown or cannot be told.
    """
    if format and format not in FORMATS:
        raise error(Reason.INVALID_VALUE, f"there is no format {format!r}; there are {', '.join(FORMATS)}", "format")
    place = find(path)
    found = FORMATS[format or _told(place)]
    return found.open(place if found.marks else _of(place, found))


def _told(place: Place) -> str:
    """The format that the files' names tell."""
    for name, one in FORMATS.items():
        if place.folder and any(mark in place.sizes for mark in one.marks):
            return name
    suffixes = {PurePosixPath(name).suffix.lower() for name in place.visible}
    formats = [name for name, one in FORMATS.items() if suffixes & set(one.suffixes)]
    if len(formats) == 1:
        return formats[0]
    told = f"{', '.join(formats)} lie side by side" if formats else f"files end in {sorted(suffixes)}"
    message = f"which format {place.location!r} has cannot be told: {told}; name one of {', '.join(FORMATS)}"
    raise error(Reason.INVALID_VALUE, message, "format")


def _of(place: Place, one: Format) -> Place:
    """The files of that format; all that are visible, where the format was named and no suffix tells."""
    names = [name for name in place.visible if PurePosixPath(name).suffix.lower() in one.suffixes]
    return place.only(names or (place.visible if place.folder else tuple(place.sizes)))
