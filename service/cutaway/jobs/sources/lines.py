"""CSV and JSON Lines files: an index of the rows is built once, and then any range of rows can be read.

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
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from cutaway.contract.json_text import read_json
from cutaway.jobs.sources.files import DataFiles, FileSource, read_errors
from cutaway.jobs.sources.source import NOT_UTF8, Column, Unreadable, Untyped, check_columns, from_values

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
