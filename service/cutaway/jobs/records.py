"""What was found about the rows of one shard, as an Arrow table: a row an example, whatever became of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from cutaway.errors import CutawayError, Reason, error
from cutaway.jobs.flat import Cells
from cutaway.tensors import Array

PREFIX = "cutaway."
"""Before the words about a column in its Arrow field's metadata: ``cutaway.kind``, ``cutaway.layer``, ..."""

_STORE = "store"
_CAPTURED = ("capture", "positions")
_FIRST = ("row", "id", "label")
_LAST = ("error", "error_message")


class Layout(NamedTuple):
    """The columns of a job's tables, decided once, so that all shards are alike."""

    schema: Any  # pa.Schema

    @property
    def tabular(self) -> Any:
        """The columns that stand in the tables, as a `pyarrow.Schema`."""
        return pa.schema([field for field in self.schema if not is_apart(field)])

    @property
    def apart(self) -> list[Any]:
        """The columns that go to Zarr."""
        return [field for field in self.schema if is_apart(field)]

    @classmethod
    def of(
        cls,
        probes: Sequence[Sequence[Cells]],
        label: Any,
        tensors: Literal["auto", "fixed", "ragged"],
        captures_to: Literal["parquet", "zarr"] = "parquet",
    ) -> Layout:
        """The layout in which all of ``probes`` fit, the answers to a few examples.

        Args:
            probes: columns of answers; a tensor whose shape differs between them is ragged.
            label: the Arrow type of the labels; None for a job without.
            tensors: whether to go by the probes; or one shape for all, or none.
            captures_to: where captures go.

        Raises:
            InvalidArgument: ``INVALID_VALUE``: two columns would have one name, or captures of several shapes would go
                to Zarr.
        """
        columns: dict[str, list[Cells]] = {}
        for cells in (each for probe in probes for each in probe):
            columns.setdefault(cells.name, []).append(cells)
        found = [_field(name, {"kind": name}, _OWN[name]) for name in ("row", "id")]
        found += [_field("label", {"kind": "label"}, label)] if label is not None else []
        for name, several in columns.items():
            to_zarr = captures_to == "zarr" and several[0].about["kind"] in _CAPTURED
            field = _field(name, {**several[0].about, _STORE: "zarr" if to_zarr else ""}, _type(several, tensors))
            _refuse_ragged_apart(field)
            found.append(field)
        found += [_field(name, {"kind": name}, pa.string()) for name in _LAST]
        names = [field.name for field in found]
        for probe in [names, *([each.name for each in probe] for probe in probes)]:
            _refuse_twice(probe)
        return cls(pa.schema(found))


def about(field: Any) -> dict[str, str]:
    """What a column holds, as words: ``kind``, and with it ``attribution``, ``method``, ``layer``, ``point``, ..."""
    words: Mapping[bytes, bytes] = field.metadata or {}
    return {
        key.decode().removeprefix(PREFIX): value.decode()
        for key, value in words.items()
        if key.decode().startswith(PREFIX)
    }


def is_apart(field: Any) -> bool:
    """Whether a column goes to Zarr."""
    return about(field).get(_STORE) == "zarr"


def is_ragged(kind: Any) -> bool:
    """Whether a column of that type holds tensors of several shapes."""
    return bool(pa.types.is_struct(kind))


class Records:
    """The rows of one shard, as they come.

    Args:
        layout: the columns.
        first: the number of the shard's first row in the data set.
        names: what each row is called; as many as there are rows.
        labels: what each row is said to be; empty for a job without labels.

    Attributes:
        errors: why nothing can be found about bad rows, by their number in the shard.
    """

    def __init__(self, layout: Layout, first: int, names: Sequence[str], labels: Sequence[int | str | None]) -> None:
        self._layout = layout
        self._first = first
        self._names = names
        self._labels = labels
        self.errors: dict[int, CutawayError] = {}
        own = {*_FIRST, *_LAST}
        self._columns = {
            field.name: _buffer(field, len(names), first) for field in layout.schema if field.name not in own
        }

    def put(self, rows: Sequence[int], found: Iterable[Cells]) -> None:
        """Note an answer about ``rows``, by their number in the shard; bad ones have none.

        Raises:
            InvalidArgument: ``INVALID_VALUE``, where it has a column that the job's first rows had not, or a tensor of
                another shape.
        """
        for cells in found:
            column = self._columns.get(cells.name)
            if column is None:
                raise error(
                    Reason.INVALID_VALUE,
                    f"row {self._first + rows[0]} has {cells.name}, which the first rows had not; leave it out",
                    "request",
                )
            for place in range(len(rows)) if cells.rows is None else cells.rows:
                if rows[place] not in self.errors:
                    column.put(rows[place], cells.values[place])

    def bad(self, row: int, failure: CutawayError) -> None:
        """Note that nothing can be found about ``row``, and why."""
        self.errors[row] = failure

    @property
    def rows(self) -> int:
        """How many there are, the bad ones too."""
        return len(self._names)

    @property
    def bad_rows(self) -> int:
        """How many were noted."""
        return len(self.errors)

    def verdicts(self) -> dict[str, dict[str, int]]:
        """By explanation, how many rows each verdict was found about."""
        counts: dict[str, dict[str, int]] = {}
        for field in self._layout.schema:
            words = about(field)
            if words["kind"] == "verdict":
                found = [verdict for verdict in self._columns[field.name].values if verdict is not None]
                counts[words["attribution"]] = {verdict: found.count(verdict) for verdict in sorted(set(found))}
        return counts

    def table(self, metadata: Mapping[str, str]) -> Any:
        """All rows, as a `pyarrow.Table` with ``metadata``."""
        schema = self._layout.tabular
        return pa.Table.from_arrays(
            [self._array(field) for field in schema], schema=schema.with_metadata(dict(metadata))
        )

    def apart(self) -> dict[str, Array]:
        """By column, the captures that go to Zarr, [rows, ...]; `nothing` in the rows that have none."""
        return {field.name: self._columns[field.name].numbers() for field in self._layout.apart}

    def _array(self, field: Any) -> Any:
        if field.name in self._columns:
            return self._columns[field.name].array()
        count = len(self._names)
        failures = [self.errors.get(row) for row in range(count)]
        values: dict[str, Sequence[Any]] = {
            "row": range(self._first, self._first + count),
            "id": self._names,
            "label": _labels(self._labels, field.type),
            "error": [None if failure is None else failure.reason for failure in failures],
            "error_message": [_told(failure) for failure in failures],
        }
        return pa.array(values[field.name], field.type)


def _labels(labels: Sequence[int | str | None], kind: Any) -> list[int | str | None]:
    """``labels`` as the job has them, numbers or texts; what is a text among numbers is no label."""
    if pa.types.is_string(kind):
        return [None if label is None else str(label) for label in labels]
    return [label if isinstance(label, int) else None for label in labels]


def _told(failure: CutawayError | None) -> str | None:
    if failure is None:
        return None
    return f"{failure.field}: {failure.message}" if failure.field else failure.message


_OWN = {"row": pa.int64(), "id": pa.string()}


def _refuse_twice(names: Sequence[str]) -> None:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        what = f"two columns would be called {twice[0]!r}; give an explanation another name"
        raise error(Reason.INVALID_VALUE, what, "request.attributions")


def _refuse_ragged_apart(field: Any) -> None:
    if is_apart(field) and is_ragged(field.type):
        what = f"{field.name} differs in shape from row to row, and a Zarr array has one: leave captures_to out"
        raise error(Reason.INVALID_VALUE, what, "output.captures_to")


def _field(name: str, words: Mapping[str, str], kind: Any) -> Any:
    return pa.field(name, kind, metadata={f"{PREFIX}{key}": value for key, value in words.items() if value})


def _type(several: Sequence[Cells], tensors: Literal["auto", "fixed", "ragged"]) -> Any:
    """The Arrow type for what was found in one column."""
    first = several[0].values
    if isinstance(first, list):
        return _LISTED[type(first[0])]
    numbers = pa.from_numpy_dtype(_portable(first).dtype)
    if first.ndim == 1:
        return numbers
    shapes = {cells.values.shape[1:] for cells in several if isinstance(cells.values, np.ndarray)}
    if tensors == "ragged" or (tensors == "auto" and len(shapes) > 1):
        return pa.struct([("values", pa.list_(numbers)), ("shape", pa.list_(pa.int32()))])
    return pa.fixed_shape_tensor(numbers, list(first.shape[1:]))


_LISTED: dict[type[Any], Any] = {str: pa.string(), bytes: pa.binary(), list: pa.list_(pa.string())}


def _portable(array: Array) -> Array:
    """``array`` in a data type that Arrow has: every bfloat16 is a float32."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _buffer(field: Any, rows: int, first: int) -> _Values:
    if isinstance(field.type, pa.FixedShapeTensorType):
        return _Tensors(field, rows, first)
    kind = _Ragged if is_ragged(field.type) else _Values
    return kind(field, rows, first)


def nothing(dtype: np.dtype[Any]) -> float | int:
    """What a Zarr array has in place of no value: NaN, or 0; the column ``error`` then says so."""
    return np.nan if dtype.kind == "f" else 0


class _Values:
    """A column of numbers or texts; None where nothing was put."""

    def __init__(self, field: Any, rows: int, first: int) -> None:
        self._field = field
        self._first = first
        self.values: list[Any] = [None] * rows

    def put(self, row: int, value: Any) -> None:
        self.values[row] = value

    def array(self) -> Any:
        return pa.array(self.values, self._field.type)

    def numbers(self) -> Array:
        dtype = np.dtype(self._field.type.to_pandas_dtype())
        return np.array([nothing(dtype) if value is None else value for value in self.values], dtype)


class _Ragged(_Values):
    """A column of tensors of several shapes."""

    def put(self, row: int, value: Any) -> None:
        self.values[row] = _portable(value)

    def array(self) -> Any:
        there = [each is not None for each in self.values]
        found = [each for each in self.values if each is not None]
        flat = np.concatenate([each.reshape(-1) for each in found]) if found else np.empty(0)
        values = pa.ListArray.from_arrays(
            _offsets(0 if each is None else each.size for each in self.values),
            pa.array(flat, self._field.type.field("values").type.value_type),
        )
        shapes = pa.array([None if each is None else each.shape for each in self.values], pa.list_(pa.int32()))
        missing = pa.array([not each for each in there])
        return pa.StructArray.from_arrays([values, shapes], fields=list(self._field.type), mask=missing)


def _offsets(sizes: Iterator[int]) -> Any:
    return pa.array(np.cumsum([0, *sizes]), pa.int32())


class _Tensors(_Values):
    """A column of tensors of one shape, in one array."""

    def __init__(self, field: Any, rows: int, first: int) -> None:
        super().__init__(field, 0, first)
        self._shape = tuple(field.type.shape)
        self._numbers = np.zeros((rows, math.prod(self._shape)), field.type.value_type.to_pandas_dtype())
        self._missing = np.ones(rows, bool)

    def put(self, row: int, value: Any) -> None:
        if value.shape != self._shape:
            raise error(
                Reason.INVALID_VALUE,
                f"row {self._first + row}: {self._field.name} has shape {list(value.shape)}, and the first rows had "
                f"{list(self._shape)}: begin anew, in another folder, with output: {{tensors: ragged}}",
                "output.tensors",
            )
        self._numbers[row] = value.reshape(-1)
        self._missing[row] = False

    def numbers(self) -> Array:
        self._numbers[self._missing] = nothing(self._numbers.dtype)
        return self._numbers.reshape(-1, *self._shape)

    def array(self) -> Any:
        flat = pa.array(self._numbers.reshape(-1), self._field.type.value_type)
        storage = pa.FixedSizeListArray.from_arrays(flat, self._numbers.shape[1], mask=pa.array(self._missing))
        return pa.ExtensionArray.from_storage(self._field.type, storage)
