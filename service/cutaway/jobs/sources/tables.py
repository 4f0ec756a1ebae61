"""Parquet and Arrow files, one or many: a part (row group, record batch) at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from cutaway.errors import Reason, error
from cutaway.jobs.sources.columns import from_arrow
from cutaway.jobs.sources.places import Place, Placed, readable
from cutaway.jobs.sources.source import Column, check_columns

_MOST_ROWS = 1024  # rows of a row group that are decoded at once


class _File(Protocol):
    """One open file of a table.

    Attributes:
        schema: its Arrow schema.
        parts: how many rows each of its parts has.
    """

    schema: Any
    parts: list[int]

    def read(self, part: int, start: int, stop: int, columns: Sequence[str]) -> list[Any]:
        """The rows [start, stop) of ``part``, as record batches."""
        ...


class Tables(Placed):
    """Parquet or Arrow files of the same columns, one after the other in the order of their names."""

    def __init__(self, place: Place, kind: type[ParquetFile] | type[ArrowFile]) -> None:
        super().__init__(place)
        self._kind = kind
        self._open: tuple[str, _File] | None = None
        self._parts: list[tuple[str, int]] = []
        sizes: list[int] = []
        self.columns: tuple[str, ...] = ()
        for name in place.sizes:
            file = self._file(name)
            self.columns = self.columns or tuple(file.schema.names)
            self._check_columns(name, file.schema.names)
            self._parts += [(name, part) for part in range(len(file.parts))]
            sizes += file.parts
        self._starts = [0, *accumulate(sizes)]

    @property
    def rows(self) -> int:
        """How many rows all files have."""
        return self._starts[-1]

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Column]:
        """The rows [start, stop); of a part that is larger, no more is decoded than a batch at a time."""
        check_columns(columns, self.columns)
        batches = [batch for piece in self._pieces(start, stop, columns) for batch in piece]
        return {name: _joined([batch.column(name) for batch in batches]) for name in columns}

    def _pieces(self, start: int, stop: int, columns: Sequence[str]) -> Iterator[list[Any]]:
        index = bisect_right(self._starts, start) - 1
        while index < len(self._parts) and self._starts[index] < stop:
            (name, part), first = self._parts[index], self._starts[index]
            end = min(stop, self._starts[index + 1]) - first
            with readable(f"{name!r} in {self._place.location!r}"):
                yield self._file(name).read(part, max(start - first, 0), end, columns)
            index += 1

    def _file(self, name: str) -> _File:
        if self._open is None or self._open[0] != name:
            with readable(f"{name!r} in {self._place.location!r}"):
                self._open = name, self._kind(self._place, name)
        return self._open[1]

    def _check_columns(self, name: str, there: Sequence[str]) -> None:
        if set(there) != set(self.columns):
            other = ", ".join(map(repr, sorted(set(there) ^ set(self.columns))))
            first = next(iter(self._place.sizes))
            raise error(Reason.DATA_UNREADABLE, f"{name!r} and {first!r} differ in their columns: {other}", "path")


def _joined(arrays: list[Any]) -> Column:
    return from_arrow(pa.chunked_array(arrays)) if arrays else []


class ParquetFile:
    """A Parquet file. A row group is walked forward, so that a large one is never held whole."""

    def __init__(self, place: Place, name: str) -> None:
        local = isinstance(place.system, LocalFileSystem)
        self._file = pq.ParquetFile(
            place.path(name) if local else place.system.open(place.path(name), "rb"), memory_map=local, pre_buffer=False
        )
        self.schema = self._file.schema_arrow
        metadata = self._file.metadata
        self.parts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._walk: _Walk | None = None

    def read(self, part: int, start: int, stop: int, columns: Sequence[str]) -> list[Any]:
        """The rows [start, stop) of a row group: cheap where they follow those that were read last."""
        if self._walk is None or not self._walk.leads_to(part, start, columns):
            self._walk = _Walk(self._file, part, columns, min(max(stop - start, 1), _MOST_ROWS))
        return list(self._walk.take(start, stop))


class _Walk:
    """A way through one row group of ``file``, ``rows`` at a time, in one direction."""

    def __init__(self, file: Any, part: int, columns: Sequence[str], rows: int) -> None:
        self._asked = part, tuple(columns)
        self._batches = file.iter_batches(rows, row_groups=[part], columns=list(columns))
        self._first = 0  # the row that the batch at hand begins with
        self._batch: Any = None

    def leads_to(self, part: int, start: int, columns: Sequence[str]) -> bool:
        """Whether row ``start`` of that part lies ahead."""
        return self._asked == (part, tuple(columns)) and start >= self._first

    def take(self, start: int, stop: int) -> Iterator[Any]:
        """The rows [start, stop), as record batches."""
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
    """An Arrow file, or a stream in a file; mapped into memory. Of a compressed one, a batch at a time is unpacked
    (a compressed stream, which has no table of its batches, is unpacked whole)."""

    def __init__(self, place: Place, name: str) -> None:
        mapped = pa.memory_map(str(place.local(name)))
        try:
            reader = pa.ipc.open_file(mapped)
        except pa.ArrowInvalid:
            mapped.seek(0)
            batches = pa.ipc.open_stream(mapped).read_all()
            self.schema = batches.schema
            self._get = batches.to_batches().__getitem__
            self.parts = [len(batch) for batch in batches.to_batches()]
        else:
            self.schema = reader.schema
            self._get = reader.get_batch
            self.parts = [len(reader.get_batch(index)) for index in range(reader.num_record_batches)]
        self._last: tuple[int, Any] | None = None

    def read(self, part: int, start: int, stop: int, columns: Sequence[str]) -> list[Any]:
        """The rows [start, stop) of a record batch."""
        if self._last is None or self._last[0] != part:
            self._last = part, self._get(part)
        return [self._last[1].select(list(columns)).slice(start, stop - start)]
