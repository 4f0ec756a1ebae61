"""The rows of one shard as an Arrow table: one row per example, bad ones too."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.results.arrays import OUTPUT
from cutaway.contract.tensors import Array
from cutaway.jobs.batch_inputs import Label
from cutaway.jobs.columns import Cells

PREFIX = "cutaway."
"""The prefix of keys in the metadata of an Arrow field: ``cutaway.kind``, ``cutaway.layer``, ..."""

_STORE = "store"
_CAPTURED = ("capture", "positions")
RESIDUAL = "residual"
"""The kind and the name of the column with the label minus the prediction, of a model that predicts a number."""

_FIXED = ("row", "id", "label", RESIDUAL, "error", "error_message")
"""The names of the columns that are not those of a result."""


class Layout(NamedTuple):
    """The columns of a job: decided once, so that all shards have the same.

    Attributes:
        schema: a `pyarrow.Schema`.
    """

    schema: Any

    @property
    def table_schema(self) -> Any:
        """The columns in the tables, as a `pyarrow.Schema`."""
        return pa.schema([field for field in self.schema if not is_in_zarr(field)])

    @property
    def zarr_fields(self) -> list[Any]:
        """The columns in Zarr arrays."""
        return [field for field in self.schema if is_in_zarr(field)]

    @classmethod
    def of(
        cls,
        probes: Sequence[Sequence[Cells]],
        label: Any,
        tensors: Literal["auto", "fixed", "ragged"],
        captures_to: Literal["parquet", "zarr"] = "parquet",
    ) -> Layout:
        """Returns the layout that fits all of ``probes``.

        Args:
            probes: the columns for a few rows; a tensor that differs in shape between them is ragged.
            label: the Arrow type of labels; None for a job without labels. Labels that are no whole numbers are numbers
                that the model predicts.
            tensors: how tensors are stored: as the probes say, all with one shape, or all ragged.
            captures_to: where captures are stored.

        Raises:
            InvalidArgument: ``INVALID_VALUE``: two columns have one name, or captures for Zarr differ in shape.
        """
        columns: dict[str, list[Cells]] = {}
        for cells in (cells for probe in probes for cells in probe):
            columns.setdefault(cells.name, []).append(cells)
        probed = [_probed_field(name, several, tensors, captures_to) for name, several in columns.items()]
        residual = {"kind": RESIDUAL, OUTPUT: measured_output(probed)}
        fields = [
            _field("row", {"kind": "row"}, pa.int64()),
            _field("id", {"kind": "id"}, pa.string()),
            *([] if label is None else [_field("label", {"kind": "label"}, label)]),
            *([_field(RESIDUAL, residual, label)] if label == pa.float64() else []),
            *probed,
            *(_field(name, {"kind": name}, pa.string()) for name in ("error", "error_message")),
        ]
        for names in [[field.name for field in fields], *([cells.name for cells in probe] for probe in probes)]:
            _check_unique(names)
        return cls(pa.schema(fields))


def measured_output(fields: Iterable[Any]) -> str:
    """Returns the name of the only output among Arrow ``fields``, if it is one floating number for each row, and rows
    have no classes; else ``""``."""
    by_kind: dict[str, list[Any]] = {}
    for field in fields:
        by_kind.setdefault(about(field)["kind"], []).append(field)
    outputs = by_kind.get(OUTPUT, [])
    if len(outputs) != 1 or "prediction" in by_kind:
        return ""
    kind = outputs[0].type
    if isinstance(kind, pa.FixedShapeTensorType):
        kind = kind.value_type if math.prod(kind.shape) == 1 else pa.null()
    return str(outputs[0].name) if pa.types.is_floating(kind) else ""


def _probed_field(name: str, several: Sequence[Cells], tensors: str, captures_to: str) -> Any:
    to_zarr = captures_to == "zarr" and several[0].about["kind"] in _CAPTURED
    arrow = _arrow_type(several, tensors)
    ragged = "true" if is_ragged(arrow) else ""
    field = _field(name, {**several[0].about, _STORE: "zarr" if to_zarr else "", "ragged": ragged}, arrow)
    if to_zarr and ragged:
        what = f"{name} differs in shape between rows, and a Zarr array has one shape: leave captures_to out"
        raise error(Reason.INVALID_VALUE, what, "output.captures_to")
    return field


def _check_unique(names: Sequence[str]) -> None:
    duplicates = [name for name in names if names.count(name) > 1]
    if duplicates:
        what = f"two columns would have the name {duplicates[0]!r}; give an attribution another name"
        raise error(Reason.INVALID_VALUE, what, "request.attributions")


def _field(name: str, about: Mapping[str, str], arrow: Any) -> Any:
    return pa.field(name, arrow, metadata={f"{PREFIX}{key}": value for key, value in about.items() if value})


def _arrow_type(several: Sequence[Cells], tensors: str) -> Any:
    """Returns the Arrow type of a column: texts, bytes, numbers, tensors of one shape, or a struct for ragged ones."""
    first = several[0].values
    if isinstance(first, list):
        return _LIST_TYPES[type(first[0])]
    numbers = pa.from_numpy_dtype(_arrow_compatible(first).dtype)
    if first.ndim == 1:
        return numbers
    shapes = {cells.values.shape[1:] for cells in several if isinstance(cells.values, np.ndarray)}
    if tensors == "ragged" or (tensors == "auto" and len(shapes) > 1):
        return pa.struct([("values", pa.list_(numbers)), ("shape", pa.list_(pa.int32()))])
    return pa.fixed_shape_tensor(numbers, list(first.shape[1:]))


_LIST_TYPES: dict[type[Any], Any] = {str: pa.string(), bytes: pa.binary(), list: pa.list_(pa.string())}


def about(field: Any) -> dict[str, str]:
    """Returns the metadata of a column: ``kind``, ``attribution``, ``method``, ``layer``, ``point``, ..."""
    metadata: Mapping[bytes, bytes] = field.metadata or {}
    decoded = {key.decode(): value.decode() for key, value in metadata.items()}
    return {key.removeprefix(PREFIX): value for key, value in decoded.items() if key.startswith(PREFIX)}


def is_in_zarr(field: Any) -> bool:
    """Returns whether a column is stored in a Zarr array."""
    return about(field).get(_STORE) == "zarr"


def is_ragged(arrow: Any) -> bool:
    """Returns whether a column of that Arrow type holds tensors of several shapes."""
    return bool(pa.types.is_struct(arrow))


class Records:
    """The rows of one shard, which are collected batch by batch.

    Args:
        layout: the columns.
        first: the index of the shard's first row in the data set.
        ids: the ids of the rows.
        labels: the labels of the rows; empty for a job without labels.

    Raises:
        InvalidArgument: ``INVALID_VALUE``: a label is a text, and the layout has numbers.

    Attributes:
        errors: the errors of bad rows, by index in the shard.
    """

    def __init__(self, layout: Layout, first: int, ids: Sequence[str], labels: Sequence[Label | None]) -> None:
        self._layout = layout
        self._first = first
        self._ids = ids
        self._labels = _label_values(layout, first, labels)
        self.errors: dict[int, CutawayError] = {}
        self._columns = {
            field.name: _buffer(field, len(ids), first) for field in layout.schema if field.name not in _FIXED
        }

    def put(self, rows: Sequence[int], columns: Iterable[Cells]) -> None:
        """Stores the columns of a batch, without those of bad rows.

        Args:
            rows: the indices of the batch's rows in the shard.
            columns: the columns.

        Raises:
            InvalidArgument: ``INVALID_VALUE``: the layout has no such column, or a tensor has another shape.
        """
        for cells in columns:
            column = self._columns.get(cells.name)
            if column is None:
                what = f"row {self._first + rows[0]} has {cells.name}, which the first rows did not have; leave it out"
                raise error(Reason.INVALID_VALUE, what, "request")
            for place in range(len(rows)) if cells.rows is None else cells.rows:
                if rows[place] not in self.errors:
                    column.put(rows[place], cells.values[place])

    def verdicts(self) -> dict[str, dict[str, int]]:
        """Returns the number of rows by verdict, by attribution."""
        counts: dict[str, dict[str, int]] = {}
        for field in self._layout.schema:
            words = about(field)
            if words["kind"] == "verdict":
                verdicts = [verdict for verdict in self._columns[field.name].values if verdict is not None]
                counts[words["attribution"]] = {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))}
        return counts

    def table(self, metadata: Mapping[str, str]) -> Any:
        """Returns all rows as a `pyarrow.Table` with ``metadata``."""
        schema = self._layout.table_schema
        arrays = [self._array(field) for field in schema]
        return pa.Table.from_arrays(arrays, schema=schema.with_metadata(dict(metadata)))

    def _residuals(self, field: Any) -> list[float | None]:
        """Returns the label minus the prediction of each row; None where one of the two is missing."""
        predicted = self._columns[about(field)[OUTPUT]].array().to_pylist()
        numbers = [each[0] if isinstance(each, list) else each for each in predicted]
        pairs = zip(self._labels, numbers)
        return [None if label is None or number is None else label - number for label, number in pairs]

    def captures(self) -> dict[str, Array]:
        """Returns the columns for Zarr, [rows, ...]; `missing_value` in rows without a value."""
        return {field.name: self._columns[field.name].numbers() for field in self._layout.zarr_fields}

    def _array(self, field: Any) -> Any:
        """Returns a column of the table as an Arrow array. Makes row numbers, ids, labels and errors itself."""
        if field.name in self._columns:
            return self._columns[field.name].array()
        count = len(self._ids)
        failures = [self.errors.get(row) for row in range(count)]
        values: dict[str, Sequence[Any]] = {
            "row": range(self._first, self._first + count),
            "id": self._ids,
            "label": self._labels,
            RESIDUAL: self._residuals(field) if field.name == RESIDUAL else (),
            "error": [failure and failure.reason for failure in failures],
            "error_message": [failure and _message(failure) for failure in failures],
        }
        return pa.array(values[field.name], field.type)


def _label_values(layout: Layout, first: int, labels: Sequence[Label | None]) -> Sequence[Any]:
    """Returns the labels as indices of classes, as numbers or as texts, whatever the layout has."""
    if not labels or pa.types.is_string(layout.schema.field("label").type):
        return [label and label.text for label in labels]
    whole = pa.types.is_integer(layout.schema.field("label").type)
    values = [label and (label.class_index if whole else label.number) for label in labels]
    for row, (label, value) in enumerate(zip(labels, values), first):
        if label is not None and value is None:
            what = f"row {row} has the label {label.text!r:.80}, and this job began with {'whole ' * whole}numbers only"
            raise error(Reason.INVALID_VALUE, f"{what}: run again into another folder", "label.column")
    return values


def _message(failure: CutawayError) -> str:
    return f"{failure.field}: {failure.message}" if failure.field else failure.message


def _arrow_compatible(array: Array) -> Array:
    """Returns ``array`` in a data type that Arrow has: bfloat16 becomes float32, which has all its values."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def missing_value(dtype: np.dtype[Any]) -> float | int:
    """Returns what a Zarr array holds in rows without a value: NaN, or 0; the column ``error`` tells such rows."""
    return np.nan if dtype.kind == "f" else 0


def tensor_array(arrow: Any, array: Array, missing: Array) -> Any:
    """Returns ``array`` [rows, ...] as an Arrow array of the type ``arrow``, with nulls in the rows ``missing``."""
    flat = pa.array(array.reshape(-1), arrow.value_type)
    storage = pa.FixedSizeListArray.from_arrays(flat, math.prod(arrow.shape), mask=pa.array(missing))
    return pa.ExtensionArray.from_storage(arrow, storage)


def ragged_array(arrow: Any, tensors: Sequence[Array | None]) -> Any:
    """Returns tensors of several shapes as an Arrow array of the type ``arrow``, with nulls where there is none."""
    # Built from one flat array: pyarrow converts a list of arrays value by value, 25 times slower.
    present = [tensor for tensor in tensors if tensor is not None]
    flat = np.concatenate([tensor.reshape(-1) for tensor in present]) if present else np.empty(0)
    offsets = np.cumsum([0, *(0 if tensor is None else tensor.size for tensor in tensors)])
    numbers = pa.array(flat, arrow.field("values").type.value_type)
    values = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), numbers)
    shapes = pa.array([None if tensor is None else tensor.shape for tensor in tensors], pa.list_(pa.int32()))
    missing = pa.array([tensor is None for tensor in tensors])
    return pa.StructArray.from_arrays([values, shapes], fields=list(arrow), mask=missing)


def _buffer(field: Any, rows: int, first: int) -> _Values:
    if isinstance(field.type, pa.FixedShapeTensorType):
        return _Tensors(field, rows, first)
    return (_Ragged if is_ragged(field.type) else _Values)(field, rows, first)


class _Values:
    """A column of numbers or texts; None in rows without a value."""

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
        return np.array([missing_value(dtype) if value is None else value for value in self.values], dtype)


class _Ragged(_Values):
    """A column of tensors of several shapes."""

    def put(self, row: int, value: Any) -> None:
        self.values[row] = np.array(_arrow_compatible(value))  # a copy: the model may write into its own tensor later

    def array(self) -> Any:
        return ragged_array(self._field.type, self.values)


class _Tensors(_Values):
    """A column of tensors of one shape, in one array."""

    def __init__(self, field: Any, rows: int, first: int) -> None:
        super().__init__(field, 0, first)
        self._shape = tuple(field.type.shape)
        self._array = np.zeros((rows, *self._shape), field.type.value_type.to_pandas_dtype())
        self._missing = np.ones(rows, bool)

    def put(self, row: int, value: Any) -> None:
        if value.shape != self._shape:
            raise error(
                Reason.INVALID_VALUE,
                f"row {self._first + row}: {self._field.name} has shape {list(value.shape)}, and the first rows had "
                f"{list(self._shape)}: run again into another folder with output: {{tensors: ragged}}",
                "output.tensors",
            )
        if not np.can_cast(value.dtype, self._array.dtype):
            what = f"row {self._first + row}: {self._field.name} is {value.dtype}, and the first rows had "
            what += f"{self._array.dtype}: name the type of the input, and run again into another folder"
            raise error(Reason.INVALID_VALUE, what, "inputs")
        self._array[row] = value
        self._missing[row] = False

    def numbers(self) -> Array:
        self._array[self._missing] = missing_value(self._array.dtype)
        return self._array

    def array(self) -> Any:
        return tensor_array(self._field.type, self._array, self._missing)
