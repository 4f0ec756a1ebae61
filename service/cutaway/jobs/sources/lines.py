"""CSV and JSON lines: where each row begins is noted once, then any range is read.

Nothing is converted: the index is 8 bytes a row, and a value is parsed when its row is read, so one that cannot be
parsed costs one row. Whether a CSV column holds numbers is settled by its first thousand rows.
"""

from __future__ import annotations

import csv
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from cutaway.jobs.sources.columns import from_values
from cutaway.jobs.sources.places import Place, Placed, readable
from cutaway.jobs.sources.source import Column, Unreadable, check_columns

_LOOKED_AT = 1000  # rows that tell the columns and their kinds
_MOSTLY = 0.9  # of the values of a column of numbers, this fraction or more are numbers
_DELIMITERS = ",;\t|"
_BROKEN = Unreadable("the text is not UTF-8")

Record = dict[str, Any]


class Lines(Placed):
    """Files of records, a line or a few each, one after the other in the order of their names."""

    def __init__(self, place: Place, kind: type[CsvFile] | type[JsonFile]) -> None:
        super().__init__(place)
        self._kind = kind
        self._files: list[CsvFile | JsonFile] = []
        for name in place.sizes:
            with readable(f"{name!r} in {place.location!r}"):
                self._files.append(kind(place.local(name)))
        self._starts = [0, *accumulate(file.rows for file in self._files)]
        self.columns: tuple[str, ...] = tuple(dict.fromkeys(name for file in self._files for name in file.columns))
        self._numbers = self._look()

    @property
    def rows(self) -> int:
        """How many rows all files have."""
        return self._starts[-1]

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Column]:
        """The rows [start, stop); a row without a value, or with one that cannot be parsed, has `Unreadable` there."""
        check_columns(columns, self.columns)
        records = self._records(start, stop)
        return {name: from_values([self._value(record, name) for record in records]) for name in columns}

    def _records(self, start: int, stop: int) -> list[Record | Unreadable]:
        records: list[Record | Unreadable] = []
        for index in range(bisect_right(self._starts, start) - 1, len(self._files)):
            first = self._starts[index]
            if first >= stop:
                break
            with readable(f"{self._place.location!r}"):
                records += self._files[index].read(max(start - first, 0), min(stop, self._starts[index + 1]) - first)
        return records

    def _look(self) -> set[str]:
        """The columns of text that hold numbers; JSON says itself what is a number."""
        if self._kind is JsonFile:
            return set()
        records = [record for record in self._records(0, _LOOKED_AT) if isinstance(record, dict)]
        found = set()
        for name in self.columns:
            cells = [record.get(name) for record in records]
            texts = [cell for cell in cells if isinstance(cell, str) and cell.strip()]
            if texts and sum(_number(text) is not None for text in texts) >= _MOSTLY * len(texts):
                found.add(name)
        return found

    def _value(self, record: Record | Unreadable, name: str) -> Any:
        if isinstance(record, Unreadable):
            return record
        if name not in record:
            return Unreadable(f"the row has no {name!r}")
        value = record[name]
        if not isinstance(value, str):
            return value
        if _is_broken(value):
            return _BROKEN
        if name not in self._numbers:
            return value
        number = _number(value)
        if number is None:
            return Unreadable(f"{value!r} is not a number" if value.strip() else "the cell is empty")
        return number


def _number(text: str) -> int | float | None:
    """The number that ``text`` is. Digits after a leading zero (``007``) are a name, as are digits with ``_``."""
    digits = text.strip().lstrip("+-")
    if "_" in digits or (len(digits) > 1 and digits.isdigit() and digits[0] == "0"):
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def _is_broken(text: str) -> bool:
    """Whether ``text`` holds lone surrogates: bytes that are not UTF-8 stand as such, and nothing can write them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


class _Text:
    """The lines of ``file`` as text, and how many bytes were read: bytes that are not UTF-8 become lone surrogates."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.position = 0

    def __iter__(self) -> Iterator[str]:
        for line in self._file:
            first = self.position == 0
            self.position += len(line)
            text = line.decode("utf-8", "surrogateescape")
            yield text.removeprefix("\ufeff") if first else text


def _between(path: Path, starts: npt.NDArray[np.int64], start: int, stop: int) -> BytesIO:
    """The bytes of rows [start, stop)."""
    with path.open("rb") as file:
        file.seek(int(starts[start]))
        return BytesIO(file.read(int(starts[stop] - starts[start])))


class CsvFile:
    """A CSV file whose first line names the columns; of ``, ; tab |`` what that line has most of stands between."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            line = file.readline().decode("utf-8", "surrogateescape")
        self._delimiter = max(_DELIMITERS, key=line.count)
        with path.open("rb") as file:
            text = _Text(file)
            records = self._parsed(text)
            self.columns: tuple[str, ...] = tuple(next(records, []))
            if len(set(self.columns)) < len(self.columns) or not self.columns or _is_broken("".join(self.columns)):
                raise ValueError("its first line must name each column, once, in UTF-8")
            self._starts = np.fromiter(_beginnings(text, records), np.int64)
        self.rows = len(self._starts) - 1
        self._refuse_open_quote()

    def read(self, start: int, stop: int) -> list[Record | Unreadable]:
        """The rows [start, stop), all values as text."""
        records = self._parsed(_Text(_between(self._path, self._starts, start, stop)))
        return [self._record(cells) for cells in records if cells]

    def _refuse_open_quote(self) -> None:
        """A quote that is never closed would make one value of all rows that follow."""
        last = list(_Text(_between(self._path, self._starts, max(self.rows - 1, 0), self.rows)))
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


def _beginnings(text: _Text, records: Iterable[list[str]]) -> Iterator[int]:
    """Where each record begins that is not an empty line, and where the last one ends."""
    begin = text.position
    for cells in records:
        if cells:
            yield begin
        begin = text.position
    yield begin


class JsonFile:
    """A file of JSON objects, one a line. Its columns are the keys in its first thousand rows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            text = _Text(file)
            self._starts = np.fromiter(
                _beginnings(text, ([line.strip()] if line.strip() else [] for line in text)), np.int64
            )
        self.rows = len(self._starts) - 1
        looked_at = self.read(0, min(self.rows, _LOOKED_AT))
        self.columns = tuple(dict.fromkeys(name for record in looked_at if isinstance(record, dict) for name in record))

    def read(self, start: int, stop: int) -> list[Record | Unreadable]:
        """The rows [start, stop)."""
        lines = _Text(_between(self._path, self._starts, start, stop))
        return [_json_record(line) for line in lines if line.strip()]


def _json_record(line: str) -> Record | Unreadable:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as failure:
        return _BROKEN if _is_broken(line) else Unreadable(f"the line is not JSON: {failure}")
    return record if isinstance(record, dict) else Unreadable("the line is not a JSON object")
