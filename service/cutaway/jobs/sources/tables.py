"""Parquet and Arrow files, one or many, read part by part: row groups or record batches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from cutaway.contract.errors import Reason, error
from cutaway.jobs.sources.files import DataFiles, FileSource, read_errors
from cutaway.jobs.sources.source import Column, check_columns, from_arrow

_MAX_ROWS = 1024  # rows of a row group that are decoded at once


_File: TypeAlias = "ParquetFile | ArrowFile"
"""An open file, with its Arrow ``schema``, the numbers of rows of its ``parts``, and ``read``."""


class Tables(FileSource):
    """Parquet or Arrow files with the same columns, in the order of their names.

    Attributes:
        rows: the number of rows of all files.
        columns: the names of the columns.
    """

    def __init__(self, files: DataFiles, kind: type[ParquetFile] | type[ArrowFile]) -> None:
        super().__init__(files)
        self._kind = kind
        self._open: tuple[str, _File] | None = None
        self._parts: list[tuple[str, int]] = []
        sizes: list[int] = []
        self.columns: tuple[str, ...] = ()
        for name in files.sizes:
            file = self._file(name)
            self.columns = self.columns or tuple(file.schema.names)
            if differing := sorted(set(file.schema.names) ^ set(self.columns)):
                first, listed = next(iter(files.sizes)), ", ".join(map(repr, differing))
                what = f"{name!r} and {first!r} have different columns: {listed}"
                raise error(Reason.DATA_UNREADABLE, what, "path")
            self._parts += [(name, part) for part in range(len(file.parts))]
            sizes += file.parts
        self._starts = [0, *accumulate(sizes)]
        self.rows = self._starts[-1]

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Column]:
        """Returns the rows [start, stop)."""
        check_columns(columns, self.columns)
        batches = list(self._batches(start, stop, columns))
        if not batches:
            return {name: [] for name in columns}
        return {name: from_arrow(pa.chunked_array([batch.column(name) for batch in batches])) for name in columns}

    def _batches(self, start: int, stop: int, columns: Sequence[str]) -> Iterator[Any]:
        """Yields record batches of the rows from ``start`` to ``stop``, counted over all parts of all files."""
        index = bisect_right(self._starts, start) - 1
        while index < len(self._parts) and self._starts[index] < stop:
            (name, part), first = self._parts[index], self._starts[index]
            end = min(stop, self._starts[index + 1]) - first
            with read_errors(f"{name!r} in {self._files.location!r}"):
                batches = list(self._file(name).read(part, max(start - first, 0), end, columns))
            yield from batches
            index += 1

    def _file(self, name: str) -> _File:
        if self._open is None or self._open[0] != name:
            with read_errors(f"{name!r} in {self._files.location!r}"):
                self._open = name, self._kind(self._files, name)
        return self._open[1]


class ParquetFile:
    """A Parquet file.

    Row groups are read forward in small batches, so that a large one is never in memory as a whole.
    """

    def __init__(self, files: DataFiles, name: str) -> None:
        local = isinstance(files.system, LocalFileSystem)
        path = files.path(name)
        file = path if local else files.system.open(path, "rb")
        self._file = pq.ParquetFile(file, memory_map=local, pre_buffer=False, page_checksum_verification=True)
        self.schema = self._file.schema_arrow
        metadata = self._file.metadata
        self.parts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._group: tuple[Any, ...] = ()  # the row group and columns that are being read
        self._batches: Iterator[Any] = iter(())
        self._batch: Any = None
        self._first = 0  # the first row of the current batch in its row group

    def read(self, part: int, start: int, stop: int, columns: Sequence[str]) -> Iterator[Any]:
        """Yields the rows [start, stop) of a row group as record batches; fast after those of the last call."""
        group = (part, *columns)
        if group != self._group or start < self._first:
            rows = min(max(stop - start, 1), _MAX_ROWS)
            self._batches = self._file.iter_batches(rows, row_groups=[part], columns=list(columns))
            self._group, self._first, self._batch = group, 0, None
        while True:
            if self._batch is None:
                self._batch = next(self._batches)
            end = self._first + len(self._batch)
            if end > start:
                begin = max(start - self._first, 0)
                yield self._batch.slice(begin, min(stop, end) - self._first - begin)
            if end >= stop:
                return
            self._first, self._batch = end, None


class ArrowFile:
    """An Arrow file or stream, mapped into memory.

    Compressed record batches are unpacked one at a time. A stream has no index: its batches are unpacked all at once.
    """

    def __init__(self, files: DataFiles, name: str) -> None:
        mapped = pa.memory_map(str(files.local(name)))
        try:
            reader = pa.ipc.open_file(mapped)
        except pa.ArrowInvalid:
            mapped.seek(0)
            table = pa.ipc.open_stream(mapped).read_all()
            batches = table.to_batches()
            self.schema = table.schema
            self._get = batches.__getitem__
            self.parts = [len(batch) for batch in batches]
        else:
            self.schema = reader.schema
            self._get = reader.get_batch
            self.parts = [len(reader.get_batch(index)) for index in range(reader.num_record_batches)]
        self._last: tuple[int, Any] | None = None

    def read(self, part: int, start: int, stop: int, columns: Sequence[str]) -> list[Any]:
        """Returns the rows [start, stop) of a record batch, as a list of one."""
        if self._last is None or self._last[0] != part:
            self._last = part, self._get(part)
        return [self._last[1].select(list(columns)).slice(start, stop - start)]
