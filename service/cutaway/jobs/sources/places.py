"""Where a data set lies: a file, a folder or a glob, on this machine or behind any fsspec URL."""

from __future__ import annotations

import csv
import hashlib
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from cutaway.errors import Reason, error

_WHOLE = 256 * 2**20  # data sets up to this many bytes are digested whole
_END = 2**20  # of larger files, so many bytes at both ends
_MANY = 1000  # of so many larger files only the names and sizes count
_PIECE = 2**20


@contextmanager
def readable(what: str) -> Iterator[None]:
    """The one place where failures to read become errors with a reason; ``what`` is the subject of the sentence."""
    try:
        yield
    except FileNotFoundError as failure:
        raise error(Reason.DATA_NOT_FOUND, f"{what} is not there", "path") from failure
    except (OSError, ValueError, pa.ArrowException, csv.Error, zipfile.BadZipFile, EOFError) as failure:
        raise error(Reason.DATA_UNREADABLE, f"{what} cannot be read: {failure}", "path") from failure


@dataclass(frozen=True)
class Place:
    """The files of one data set.

    Attributes:
        location: what the user wrote.
        system: the fsspec file system that holds them.
        root: the folder that the names start from.
        sizes: by the files' names below ``root``, in order, their sizes in bytes.
        folder: whether the location is a folder.
    """

    location: str
    system: Any
    root: str
    sizes: dict[str, int]
    folder: bool
    _scratch: list[tempfile.TemporaryDirectory[str]] = field(default_factory=list, repr=False)

    @property
    def visible(self) -> tuple[str, ...]:
        """The files that are data: hidden ones, and what writers leave beside it (``_SUCCESS``), are not."""
        return tuple(name for name in self.sizes if not any(part[0] in "._" for part in PurePosixPath(name).parts))

    @property
    def title(self) -> str:
        """The name of the file or folder, without its suffix."""
        return PurePosixPath(self.root if self.folder else next(iter(self.sizes))).stem

    def only(self, names: Sequence[str]) -> Place:
        """The same place, with no files but ``names``."""
        return replace(self, sizes={name: self.sizes[name] for name in names})

    def path(self, name: str) -> str:
        """What the file system calls the file ``name``."""
        return f"{self.root.rstrip('/')}/{name}"

    def local(self, name: str) -> Path:
        """The file ``name`` on this machine: itself, or a copy made now, which goes when the data set is dropped.

        A copy on disk can be mapped into memory or read line by line from anywhere; few remote files can.
        """
        if isinstance(self.system, LocalFileSystem):
            return Path(self.path(name))
        copy = self.scratch() / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        with readable(f"{self.location!r}"):
            self.system.get_file(self.path(name), str(copy))
        return copy

    def scratch(self) -> Path:
        """A new directory that goes when the data set is dropped."""
        self._scratch.append(tempfile.TemporaryDirectory(prefix="cutaway-data-"))
        return Path(self._scratch[-1].name)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over each file's name below the root, its size, and its content.

        Up to 256 MiB all content counts. Of more, the first and last MiB of each file do (a Parquet file's last bytes
        hold its statistics); of more than a thousand files with more than that, the names and sizes alone.
        """
        digest = hashlib.sha256()
        whole = sum(self.sizes.values()) <= _WHOLE
        for name in sorted(self.sizes):
            size = self.sizes[name]
            digest.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
            if whole or len(self.sizes) <= _MANY:
                with readable(f"{name!r} in {self.location!r}"), self.system.open(self.path(name), "rb") as file:
                    for piece in _content(file, size, whole):
                        digest.update(piece)
        return digest.hexdigest()


def _content(file: IO[bytes], size: int, whole: bool) -> Iterator[bytes]:
    if whole or size <= 2 * _END:
        while piece := file.read(_PIECE):
            yield piece
    else:
        yield file.read(_END)
        file.seek(size - _END)
        yield file.read(_END)


def find(location: str) -> Place:
    """The files at ``location``: a path or fsspec URL of a file or folder, or a glob.

    Links to folders are not followed: one may lead back to where it lies.

    Raises:
        NotFound: ``DATA_NOT_FOUND``, where nothing is there.
        InvalidArgument: ``DATA_UNREADABLE``, for a URL of an unknown kind, or what may not be looked at.
    """
    with readable(f"{location!r}"):
        system, path = _file_system(location)
        if system.isdir(path):
            return _place(location, system, path, system.find(path, detail=True), folder=True)
        if system.exists(path):
            return _place(location, system, system._parent(path), {path: system.info(path)}, folder=False)
        matches = system.glob(path, detail=True) if any(mark in path for mark in "*?[") else {}
        root = path[: min(path.find(mark) for mark in "*?[" if mark in path)].rpartition("/")[0] if matches else ""
        return _place(location, system, root, matches, folder=False)


def _file_system(location: str) -> tuple[Any, str]:
    try:
        system, path = fsspec.core.url_to_fs(location)
    except ImportError as failure:  # the protocol is known, its package is not installed
        raise error(Reason.DATA_UNREADABLE, f"{location!r} cannot be read: {failure}", "path") from failure
    return system, path


def _place(location: str, system: Any, root: str, found: dict[str, dict[str, Any]], folder: bool) -> Place:
    files = {path: info for path, info in found.items() if info.get("type") != "directory"}
    if not files:
        raise error(Reason.DATA_NOT_FOUND, f"{location!r} is not there, or holds no file", "path")
    below = len(root.rstrip("/")) + 1
    return Place(
        location, system, root, {path[below:]: int(files[path].get("size") or 0) for path in sorted(files)}, folder
    )


class Placed:
    """What every source that lies somewhere is told by.

    Args:
        place: where its files lie.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    @property
    def fingerprint(self) -> str:
        """A digest of names, sizes and content: see `Place.fingerprint`."""
        return self._place.fingerprint
