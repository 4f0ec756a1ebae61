"""Files of rows. Parquet and Arrow files are read part by part: row groups or record batches.

CSV and JSON Lines files: an index of the rows is built once, and then any range of rows can be read.

Values are parsed only when their rows are read, so that a value that cannot be parsed costs one row. The index
has 8 bytes per row. The values of CSV are texts, which are parsed where an input takes numbers.
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from cutaway.contract.errors import Reason, error
from cutaway.contract.json_text import read_json
from cutaway.jobs.sources.files import DataFiles, FileSource, read_errors
from cutaway.jobs.sources.source import NOT_UTF8, Column, Unreadable, Untyped, check_columns, from_arrow, from_values

_SAMPLE = 1000  # rows that decide the columns of JSON
_DELIMITERS = ",;\t|"

Record = dict[str, Any]


class RecordFiles(FileSource):
    """Files of records, in the order of their names; a record has one or more lines.

    Attributes:
        rows: the number of rows of all files.
        columns: the columns of all files.
    """

    def __init__(self, files: DataFiles, kind: type[CsvFile] | type[JsonFile]) -> None:
        super().__init__(files)
        self._opened: list[CsvFile | JsonFile] = []
        for name in files.sizes:
            with read_errors(f"{name!r} in {files.location!r}"):
                self._opened.append(kind(files.local(name)))
        self._starts = [0, *accumulate(file.rows for file in self._opened)]
        self.rows = self._starts[-1]
        self.columns: tuple[str, ...] = tuple(dict.fromkeys(name for file in self._opened for name in file.columns))
        self._column: Callable[[list[Any]], Column] = Untyped if kind is CsvFile else from_values

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Column]:
        """Returns the rows [start, stop); a value that is missing or cannot be parsed is `Unreadable`."""
        check_columns(columns, self.columns)
        records = self._records(start, stop)
        return {name: self._column([_value(record, name) for record in records]) for name in columns}

    def _records(self, start: int, stop: int) -> list[Record | Unreadable]:
        records: list[Record | Unreadable] = []
        for index in range(bisect_right(self._starts, start) - 1, len(self._opened)):
            first = self._starts[index]
            if first >= stop:
                break
            with read_errors(f"{self._files.location!r}"):
                records += self._opened[index].read(max(start - first, 0), min(stop, self._starts[index + 1]) - first)
        return records


def _value(record: Record | Unreadable, name: str) -> Any:
    if isinstance(record, Unreadable):
        return record
    if name not in record:
        return Unreadable(f"the row has no {name!r}")
    value = record[name]
    return value if not isinstance(value, str) or _is_utf8(value) else NOT_UTF8


def _is_utf8(text: str) -> bool:
    """Returns False for a text with lone surrogates, which stand for bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _TextLines:
    """An iterator over the lines of ``file`` as text, with lone surrogates for bytes that are not UTF-8.

    Attributes:
        position: the number of bytes read.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.position = 0

    def __iter__(self) -> Iterator[str]:
        for line in self._file:
            first = self.position == 0
            self.position += len(line)
            text = line.decode("utf-8", "surrogateescape")
            yield text.removeprefix("\ufeff") if first else text


def _lines_of(path: Path, starts: npt.NDArray[np.int64], start: int, stop: int) -> _TextLines:
    """Returns the lines of the rows [start, stop)."""
    with path.open("rb") as file:
        file.seek(int(starts[start]))
        return _TextLines(BytesIO(file.read(int(starts[stop] - starts[start]))))


class CsvFile:
    """A CSV file. The first line names the columns; the delimiter is the most frequent of ``, ; tab |`` in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            line = file.readline().decode("utf-8", "surrogateescape")
            self._delimiter = max(_DELIMITERS, key=line.count)
            file.seek(0)
            text = _TextLines(file)
            records = self._parsed(text)
            self.columns: tuple[str, ...] = tuple(next(records, []))
            if len(set(self.columns)) < len(self.columns) or not self.columns or not _is_utf8("".join(self.columns)):
                raise ValueError("its first line must name each column, once, in UTF-8")
            self._starts = np.fromiter(_row_starts(text, records), np.int64)
        self.rows = len(self._starts) - 1
        self._check_quotes()

    def read(self, start: int, stop: int) -> list[Record | Unreadable]:
        """Returns the rows [start, stop), all values as text."""
        records = self._parsed(_lines_of(self._path, self._starts, start, stop))
        return [self._record(cells) for cells in records if cells]

    def _check_quotes(self) -> None:
        """Raises an error if a quote is not closed: it would make one value of all rows that follow."""
        last = list(_lines_of(self._path, self._starts, max(self.rows - 1, 0), self.rows))
        if len(last) > 1:
            try:
                list(csv.reader(last, delimiter=self._delimiter, strict=True))
            except csv.Error:
                raise ValueError(f"a quote in its row {self.rows} is never closed") from None

    def _parsed(self, text: Iterable[str]) -> Iterator[list[str]]:
        return csv.reader(text, delimiter=self._delimiter)

    def _record(self, cells: list[str]) -> Record | Unreadable:
        if len(cells) != len(self.columns):
            return Unreadable(f"the row has {len(cells)} fields and the first line {len(self.columns)}")
        return dict(zip(self.columns, cells))


def _row_starts(text: _TextLines, records: Iterable[Sequence[str]]) -> Iterator[int]:
    """Yields the offset of every record that is no empty line, and the offset after the last one.

    ``records`` must parse ``text`` line by line: ``text`` counts the bytes that were read so far.
    """
    start = text.position
    for cells in records:
        if cells:
            yield start
        start = text.position
    yield start


class JsonFile:
    """A file with a JSON object on every line. Its columns are the keys in the first thousand rows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            text = _TextLines(file)
            self._starts = np.fromiter(_row_starts(text, (line.strip() for line in text)), np.int64)
        self.rows = len(self._starts) - 1
        sample = self.read(0, min(self.rows, _SAMPLE))
        self.columns = tuple(dict.fromkeys(name for record in sample if isinstance(record, dict) for name in record))

    def read(self, start: int, stop: int) -> list[Record | Unreadable]:
        """Returns the rows [start, stop)."""
        lines = _lines_of(self._path, self._starts, start, stop)
        return [_json_record(line) for line in lines if line.strip()]


def _json_record(line: str) -> Record | Unreadable:
    try:
        record = read_json(line)
    except ValueError as failure:
        return Unreadable(f"the line is not JSON: {failure}") if _is_utf8(line) else NOT_UTF8
    return record if isinstance(record, dict) else Unreadable("the line is not a JSON object")


# Parquet and Arrow.

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
