"""The files of a data set: a file, a folder or a glob, on this machine or behind any fsspec URL."""

from __future__ import annotations

import csv
import hashlib
import os
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from cutaway.contract.errors import Reason, error

_HASHED_WHOLE = 256 * 2**20  # bytes of a data set whose whole content counts for the fingerprint
_HASHED_END = 2**20  # bytes that count at both ends of a file of a larger one
_HASHED_FILES = 1000  # of more files of a larger data set, only names and sizes count
_BLOCK = 2**20


@contextmanager
def read_errors(what: str) -> Iterator[None]:
    """Raises every exception of reading as an error with a reason; ``what`` is the subject of its message."""
    try:
        yield
    except FileNotFoundError as failure:
        raise error(Reason.DATA_NOT_FOUND, f"{what} does not exist", "path") from failure
    except (OSError, ValueError, pa.ArrowException, csv.Error, zipfile.BadZipFile, EOFError) as failure:
        raise error(Reason.DATA_UNREADABLE, f"{what} cannot be read: {failure}", "path") from failure


@dataclass(frozen=True)
class DataFiles:
    """The files of one data set.

    Attributes:
        location: the path or URL that the user gave.
        system: the fsspec file system.
        root: the folder that the names are relative to.
        sizes: the sizes in bytes by name, in order of the names.
        is_folder: whether the location is a folder.
    """

    location: str
    system: Any
    root: str
    sizes: dict[str, int]
    is_folder: bool
    _temporary: list[tempfile.TemporaryDirectory[str]] = field(default_factory=list, repr=False)

    @property
    def visible(self) -> tuple[str, ...]:
        """The files without hidden ones and those that writers leave beside the data (``_SUCCESS``)."""
        return tuple(name for name in self.sizes if not any(part[0] in "._" for part in PurePosixPath(name).parts))

    @property
    def title(self) -> str:
        """The name of the file or folder, without its suffix."""
        return PurePosixPath(self.root if self.is_folder else next(iter(self.sizes))).stem

    def only(self, names: Sequence[str]) -> DataFiles:
        """Returns the same data set with only the files ``names``."""
        return replace(self, sizes={name: self.sizes[name] for name in names})

    def path(self, name: str) -> str:
        """Returns the path of a file in the file system."""
        return f"{self.root.rstrip('/')}/{name}"

    def local(self, name: str) -> Path:
        """Returns the path of a file on this machine, as `local_folder`."""
        return self.local_folder([name]) / name

    def local_folder(self, names: Iterable[str] | None = None) -> Path:
        """Returns the folder on this machine; of a remote folder, a copy with the files ``names``, by default all.

        Few remote files can be mapped into memory or read from any offset. The copy is deleted with the data set.
        """
        if isinstance(self.system, LocalFileSystem):
            return Path(self.path(""))
        folder = self.temporary()
        for name in self.sizes if names is None else names:
            copy = folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            with read_errors(f"{self.location!r}"):
                self.system.get_file(self.path(name), str(copy))
        return folder

    def temporary(self) -> Path:
        """Returns a new directory that is deleted with the data set."""
        self._temporary.append(tempfile.TemporaryDirectory(prefix="cutaway-data-"))
        return Path(self._temporary[-1].name)

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 over names, sizes and contents of the files.

        Up to 256 MiB, all content counts. Of larger data sets, the first and last MiB of every file count (the last
        bytes of a Parquet file hold its statistics). Of more than a thousand files, only names and sizes count.
        """
        digest = hashlib.sha256()
        whole = sum(self.sizes.values()) <= _HASHED_WHOLE
        for name in sorted(self.sizes):
            size = self.sizes[name]
            digest.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
            if whole or len(self.sizes) <= _HASHED_FILES:
                with read_errors(f"{name!r} in {self.location!r}"), self.system.open(self.path(name), "rb") as file:
                    for block in _hashed_blocks(file, size, whole):
                        digest.update(block)
        return digest.hexdigest()


def _hashed_blocks(file: IO[bytes], size: int, whole: bool) -> Iterator[bytes]:
    if whole or size <= 2 * _HASHED_END:
        while block := file.read(_BLOCK):
            yield block
    else:
        yield file.read(_HASHED_END)
        file.seek(size - _HASHED_END)
        yield file.read(_HASHED_END)


def find_files(location: str) -> DataFiles:
    """Returns the files at ``location``: a path or fsspec URL of a file or folder, or a glob.

    Links to folders are not followed: one may lead back to a folder above it.

    Raises:
        NotFound: ``DATA_NOT_FOUND``: there is no file.
        InvalidArgument: ``DATA_UNREADABLE``: the protocol of the URL is unknown, or access is denied.
    """
    with read_errors(f"{location!r}"):
        try:
            system, path = fsspec.core.url_to_fs(location)
        except ImportError as failure:  # the protocol is known, its package is not installed
            raise error(Reason.DATA_UNREADABLE, f"{location!r} cannot be read: {failure}", "path") from failure
        if system.isdir(path):
            return _data_files(location, system, path, system.find(path, detail=True), is_folder=True)
        if system.exists(path):
            return _data_files(location, system, system._parent(path), {path: system.info(path)}, is_folder=False)
        matches = system.glob(path, detail=True) if any(mark in path for mark in "*?[") else {}
        root = path[: min(path.find(mark) for mark in "*?[" if mark in path)].rpartition("/")[0] if matches else ""
        return _data_files(location, system, root, matches, is_folder=False)


def _data_files(location: str, system: Any, root: str, infos: dict[str, dict[str, Any]], is_folder: bool) -> DataFiles:
    start = len(root.rstrip("/")) + 1
    files = sorted((path, info) for path, info in infos.items() if _is_file(system, path, info))
    if not files:
        raise error(Reason.DATA_NOT_FOUND, f"{location!r} does not exist, or contains no file", "path")
    return DataFiles(
        location, system, root, {path[start:]: int(info.get("size") or 0) for path, info in files}, is_folder
    )


def _is_file(system: Any, path: str, info: dict[str, Any]) -> bool:
    """Returns False also for pipes, sockets and devices, at which a reader would wait; True for a broken link."""
    kind = info.get("type")
    if kind == "other" and isinstance(system, LocalFileSystem):  # also of links
        return os.path.isfile(path) or not os.path.exists(path)
    return bool(kind != "directory")


class FileSource:
    """The base class of data sets in files.

    Args:
        files: the files.
    """

    def __init__(self, files: DataFiles) -> None:
        self._files = files

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the files; see `DataFiles.fingerprint`."""
        return self._files.fingerprint
