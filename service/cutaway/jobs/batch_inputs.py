"""Converts columns of a data set to requests: inputs of the model, and labels as targets. Detects bad rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from cutaway.contract.errors import CutawayError, Reason, at, error, release_frames
from cutaway.contract.pictures import media_type_of
from cutaway.contract.requests import ClassIndex, InspectRequest, Raw
from cutaway.contract.results import ModelDetail
from cutaway.contract.tensors import FLOATING, MOST_WHOLE, Array, dtype_name, fitted, whole_numbers
from cutaway.jobs.sources.source import NOT_UTF8, Column, Source, Unreadable, Untyped, as_numbers, read_number
from cutaway.jobs.spec import Job, RawInput, TensorColumn, parse_request


@dataclass(frozen=True)
class Batch:
    """A batch of rows of a shard, and the request for them.

    Attributes:
        rows: the indices of the rows in the shard.
        bad: the errors of bad rows. In the request, a good row replaces every bad one, so that the other rows keep
            their places, and with them their random numbers.
        request: the request; None if every row is bad.
    """

    rows: tuple[int, ...]
    bad: Mapping[int, CutawayError]
    request: InspectRequest | None


def named_columns(job: Job) -> dict[str, str]:
    """Returns the columns that the job reads, by the section of the job that names the column.

    Columns that make vectors are not among them.
    """
    inputs = {"raw": job.inputs.raw} if isinstance(job.inputs, RawInput) else job.inputs
    named = {f"inputs.{name}": spec for name, spec in inputs.items()} | {"id": job.id, "label": job.label}
    return {section: spec.column for section, spec in named.items() if spec is not None and spec.column}


class BatchBuilder:
    """A builder of the requests of one job.

    Args:
        job: the spec.
        detail: the model's inputs and class names.
        features: the columns of the inputs that are made from several columns.

    Attributes:
        template: the request without inputs.
        inputs: the sections of the job that name inputs.
        request: the request for the first row, without its inputs and without its label as target.
    """

    def __init__(self, job: Job, detail: ModelDetail, features: Mapping[str, Sequence[str]]) -> None:
        self._job = job
        self._tensors = {} if isinstance(job.inputs, RawInput) else job.inputs
        self._features = {name: tuple(columns) for name, columns in features.items()}
        self.template = template = parse_request(job.request, job.target)
        self._classes = {name: index for index, name in enumerate(detail.labels)}
        self._shared_names = {name for name, count in Counter(detail.labels).items() if count > 1}
        self._declared = {spec.name: spec.data_type for spec in detail.inputs}
        self._media_types = detail.media_types
        self._parameters = detail.provenance.data_type
        self.request = replace(template.request, model=job.model.name or detail.model.model, seed=template.seed)
        self._named = named_columns(job)
        sections = [*self._named, *(f"inputs.{name}" for name in self._features)]
        self.inputs = tuple(section for section in sections if section.startswith("inputs."))

    def read(self, source: Source, start: int, stop: int) -> dict[str, Column]:
        """Returns the rows [start, stop) of the data set: what the job needs of them, by the section that names it."""
        names = [*self._named.values(), *(name for columns in self._features.values() for name in columns)]
        data = source.read(start, stop, tuple(dict.fromkeys(names)))
        return {
            **{section: self._column(section, data[column]) for section, column in self._named.items()},
            **{f"inputs.{name}": self._vectors(name, data, start) for name in self._features},
        }

    def _column(self, section: str, column: Column) -> Column:
        """Returns the column of an input tensor as numbers, any other as it is. Where the model declares no data type,
        integers beside floats become floats."""
        name = section.removeprefix("inputs.")
        if name == section or name not in self._tensors:
            return column
        numbers = as_numbers(column)
        return numbers if self._declared_type(name) else alike(numbers)

    def _vectors(self, name: str, data: Mapping[str, Column], first: int) -> Column:
        spec = self._tensors[name]
        return feature_vectors(data, self._features[name], first, self._data_type(name), spec.scale)

    def batch(
        self,
        columns: Mapping[str, Column],
        rows: Sequence[int],
        first: int,
        known_bad: Mapping[int, CutawayError] = MappingProxyType({}),
    ) -> Batch:
        """Returns the request for ``rows``.

        Args:
            columns: what `read` returned for the rows of a shard.
            rows: the indices of the rows in the shard.
            first: the index of the shard's first row in the data set.
            known_bad: the errors of rows that are known to be bad and are not read.

        Raises:
            InvalidArgument: ``BATCH_MISMATCH``: the rows differ in shape.
        """
        bad = {row: known_bad[row] for row in rows if row in known_bad}
        examples: dict[int, dict[str, Array] | Raw] = {}
        classes: dict[int, int] = {}
        for row in rows:
            if row in bad:
                continue
            try:
                self._check_texts(columns, row)
                classes[row] = self._class_index(columns, row) if self.template.by_label else 0
                examples[row] = self._example(columns, row)
            except CutawayError as failure:
                release_frames(failure)  # this one refers to the whole batch
                bad[row] = failure
        if not examples:
            return Batch(tuple(rows), bad, None)
        present = [row if row in examples else next(iter(examples)) for row in rows]
        request = replace(self.request, seed=self.template.seed + first + rows[0])
        if self.template.by_label:
            request = replace(request, target=ClassIndex(tuple(classes[row] for row in present)))
        return Batch(tuple(rows), bad, _with_inputs(request, [examples[row] for row in present]))

    def _check_texts(self, columns: Mapping[str, Column], row: int) -> None:
        """Raises ``DATA_UNREADABLE`` if the row's id or label is a text that is not UTF-8, which no table holds."""
        for section in {"id", "label"} & columns.keys():
            value = columns[section][row]
            if isinstance(value, Unreadable) and value == NOT_UTF8:
                raise error(Reason.DATA_UNREADABLE, value.reason, f"{section}.column")

    def _example(self, columns: Mapping[str, Column], row: int) -> dict[str, Array] | Raw:
        """Returns the model's input for one row: a `Raw`, or arrays by input name without batch axis."""
        inputs = self._job.inputs
        if isinstance(inputs, RawInput):
            with at("inputs.raw"):
                data = _as_bytes(_value(columns, "inputs.raw", row))
            return Raw(data, inputs.raw.media_type or self._media_type(data))
        tensors = {}
        for name, spec in inputs.items():
            with at(f"inputs.{name}"):
                tensors[name] = self._tensor(name, spec, _value(columns, f"inputs.{name}", row))
        return tensors

    def _media_type(self, data: bytes) -> str:
        """Returns the media type of a picture, else the one that the adapter takes bytes without one for."""
        default = next(iter(self._media_types), "")
        return (media_type_of(data, self._media_types) if default.startswith("image/") else "") or default

    def _tensor(self, name: str, spec: TensorColumn, value: Any) -> Array:
        """Returns ``value`` in the data type and shape of the input ``name``, without a batch axis."""
        try:
            array: Array = np.asarray(value)
        except ValueError:  # lists of unequal lengths
            raise error(Reason.INPUT_SHAPE, "the value is not a rectangular array") from None
        if name not in self._features:
            array = convert(array, self._data_type(name, array), spec.scale)
        if spec.shape is None:
            return array
        try:
            return array.reshape(spec.shape)
        except ValueError:
            what = f"{array.size} numbers of shape {list(array.shape)} cannot be reshaped to {list(spec.shape)}"
            raise error(Reason.INPUT_SHAPE, what) from None

    def _data_type(self, name: str, array: Array | None = None) -> str:
        """Returns the data type of the input ``name``, as the job or else the model declares it.

        Without a declaration, floats, features and numbers with a fractional scale have the data type of the model's
        parameters, and all other inputs that of ``array``.
        """
        # The numbers of a table may all be whole in one batch and not in another.
        is_scaled = name in self._tensors and not self._tensors[name].scale.is_integer()
        if array is None or array.dtype.kind == "f" or name in self._features or is_scaled:
            return self._declared_type(name) or self._parameters
        return self._declared_type(name) or dtype_name(array)

    def _declared_type(self, name: str) -> str:
        return (self._tensors[name].dtype if name in self._tensors else "") or self._declared.get(name, "")

    def _class_index(self, columns: Mapping[str, Column], row: int) -> int:
        """Returns the index of the class that the row's label names."""
        label = self.label(columns, row)
        if label is None:
            raise error(Reason.TARGET_RANGE, "there is no label, and the target is the label", "label.column")
        if label.class_index is not None:
            return label.class_index
        if label.text in self._shared_names:
            what = f"several classes of the model are called {label.text!r}; use the index of one"
            raise error(Reason.TARGET_RANGE, what, "label.column")
        index = self._classes.get(label.text, _whole(read_number(label.text)))
        if index is None:
            known = ", ".join(map(repr, list(self._classes)[:_MAX_CLASSES_NAMED])) or "none: use class indices"
            known += ", ..." if len(self._classes) > _MAX_CLASSES_NAMED else ""
            what = f"the model has no class {label.text!r}; it has {known}"
            raise error(Reason.TARGET_RANGE, what, "label.column")
        return index

    def read_labels(self, source: Source, start: int, stop: int) -> list[Label | None]:
        """Returns the labels of the rows [start, stop) of the data set, of a job that names their column."""
        columns = {"label": source.read(start, stop, (self._named["label"],))[self._named["label"]]}
        return [self.label(columns, row) for row in range(stop - start)]

    def label(self, columns: Mapping[str, Column], row: int) -> Label | None:
        """Returns the label of the row; None where it has none, or the job names no column."""
        value = None if self._job.label is None else columns["label"][row]
        value = value.item() if isinstance(value, np.generic) else value
        if value is None or isinstance(value, Unreadable) or (isinstance(value, float) and value != value):
            return None
        if not isinstance(value, (str, bytes)):
            index = _whole(value)
            return Label(str(value) if index is None else str(index), index)
        text = _text(value)
        index = _whole(read_number(text)) if isinstance(columns["label"], Untyped) else None
        is_name = text in self._shared_names or self._classes.get(text) not in (None, index)
        return Label(text, None if is_name else index) if text else None

    def row_id(self, columns: Mapping[str, Column], row: int, number: int) -> str:
        """Returns the id of the row; by default ``number``, its index in the data set."""
        value = None if self._job.id is None else columns["id"][row]
        return str(number) if value is None or isinstance(value, Unreadable) else _text(value)


def _text(value: object) -> str:
    """Returns a value as text; bytes that are not UTF-8 as Python writes them."""
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return value.decode()
    return str(value)


def _value(columns: Mapping[str, Column], section: str, row: int) -> Any:
    value = columns[section][row]
    if value is None or isinstance(value, Unreadable):
        raise error(Reason.DATA_UNREADABLE, "there is no value" if value is None else value.reason)
    return value


class Label(NamedTuple):
    """The label of a row.

    Attributes:
        text: the label as text, as the data set has it.
        class_index: the class index, for a whole number; None for a text, if the format has types or it is a name.
    """

    text: str
    class_index: int | None

    @property
    def number(self) -> float | None:
        """The label as a number; None for another text."""
        number = read_number(self.text)
        return None if isinstance(number, Unreadable) else float(number)


def _whole(value: object) -> int | None:
    if isinstance(value, (int, float)) and abs(value) < _INT64 and value == int(value):
        return int(value)
    return None


_INT64 = 2**63
_MAX_CLASSES_NAMED = 20


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise error(Reason.RAW_UNSUPPORTED, f"the value is neither text nor bytes, but {type(value).__name__}")


def _with_inputs(request: InspectRequest, examples: Sequence[dict[str, Array] | Raw]) -> InspectRequest:
    """Returns ``request`` with ``examples`` as its batch."""
    raw = tuple(example for example in examples if isinstance(example, Raw))
    if raw:
        return replace(request, raw=raw)
    tensors = [example for example in examples if isinstance(example, dict)]
    try:
        return replace(request, tensors={name: np.stack([row[name] for row in tensors]) for name in tensors[0]})
    except ValueError:
        raise error(Reason.BATCH_MISMATCH, "the rows of a batch differ in shape") from None


# Numbers of a data set in the data types of inputs: each exactly, or with the reason why it cannot be.


def convert(array: Array, data_type: str, scale: float = 1.0) -> Array:
    """Returns ``array * scale`` as ``data_type``.

    Raises:
        InvalidArgument: ``INPUT_DTYPE``: it holds no numbers, or floats that are not whole; ``INVALID_VALUE``:
            ``data_type`` cannot hold one of its numbers.
    """
    if array.dtype.kind not in "fiub":
        raise error(Reason.INPUT_DTYPE, f"{array.dtype} cannot be converted to {data_type}")
    converted, misfits = _cast(array, data_type, scale)
    if misfits.any():
        is_other_type = array.dtype.kind == "f" and data_type not in FLOATING
        reason = Reason.INPUT_DTYPE if is_other_type else Reason.INVALID_VALUE
        raise error(reason, _misfit(array[misfits][0], data_type, scale))
    return converted


def _cast(array: Array, data_type: str, scale: float) -> tuple[Array, Array]:
    """Returns ``array * scale`` as ``data_type``, and which elements it cannot hold, as `fitted` does."""
    if array.dtype.kind == "O" and data_type in FLOATING:
        array = array.astype(np.float64)
    if scale == 1:
        return fitted(array, data_type)
    numbers = array.astype(np.float64)
    with np.errstate(over="ignore"):
        scaled = numbers * scale
    converted, misfits = fitted(scaled, data_type)
    is_lost = np.isinf(scaled) if data_type in FLOATING else np.abs(numbers) > MOST_WHOLE
    return converted, misfits | (is_lost & np.isfinite(numbers))


def _misfit(number: object, data_type: str, scale: float) -> str:
    """Returns why ``number`` has no place in an input of that data type."""
    times = "" if scale == 1 else f" times the scale {scale:g}"
    if data_type in FLOATING:
        return f"{number}{times} is too large for {data_type}"
    low, high = whole_numbers(data_type)
    exact = " (floating ones below 2**53)" if high > MOST_WHOLE else ""
    return f"{number}{times} is no {data_type}, which holds whole numbers from {low} to {high}{exact}"


def alike(column: Column) -> Column:
    """Returns a column with floats for all numbers if it has floats: JSON may have 1 for 1.0."""
    if isinstance(column, np.ndarray) or not {"i", "f"} <= {_kind(value) for value in column}:
        return column
    return [np.asarray(value, np.float64) if _kind(value) in ("i", "u") else value for value in column]


def _kind(value: object) -> str:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.kind
    return {int: "i", float: "f"}.get(type(value), "")


def feature_vectors(
    data: Mapping[str, Column], columns: Sequence[str], first: int, data_type: str, scale: float = 1.0
) -> Column:
    """Returns the numbers of ``columns`` as [rows, columns]; a row without one of them is `Unreadable`.

    Args:
        data: the columns of some rows.
        columns: the names of the features, in order.
        first: the index of the first row in the data set, for messages.
        data_type: the data type of the input.
        scale: a factor for each number.
    """
    problems: dict[int, list[str]] = {}
    arrays = []
    for name in columns:
        numbers, reasons = _numbers(as_numbers(data[name]))
        array, misfits = _cast(numbers, data_type, scale)
        reasons = {int(row): _misfit(numbers[row], data_type, scale) for row in np.flatnonzero(misfits)} | reasons
        arrays.append(array)
        for row, reason in reasons.items():
            problems.setdefault(row, []).append(f"column {name!r}: {reason}")
    vectors: Array = np.stack(arrays, axis=1)
    if not problems:
        return vectors
    return [
        Unreadable(_message(problems[row], first + row)) if row in problems else vector
        for row, vector in enumerate(vectors)
    ]


def _message(reasons: Sequence[str], row: int) -> str:
    more = f", and {len(reasons) - 1} more columns" if len(reasons) > 1 else ""
    return f"row {row}, {reasons[0]}{more}"


def _numbers(column: Column) -> tuple[Array, dict[int, str]]:
    """Returns a column as numbers [rows], and why rows have none; NaN stands for a missing value in a table.

    Of a list, the numbers are Python's, so that no number takes the type of another.
    """
    if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "fiub":
        missing = np.isnan(column) if column.dtype.kind == "f" else np.zeros(len(column), bool)
        return column, {int(row): "there is no value" for row in np.flatnonzero(missing)}
    numbers = np.zeros(len(column), object)
    reasons = {}
    for row, value in enumerate(column):
        number = value.item() if isinstance(value, np.generic) else value
        try:
            if not isinstance(number, (int, float)) or number != number:
                reasons[row] = _reason(number)
            else:
                numbers[row] = number if abs(number) < 2**64 else float(number)
        except OverflowError:
            reasons[row] = "the number is too large"
    return numbers, reasons


def _reason(value: object) -> str:
    if isinstance(value, Unreadable):
        return value.reason
    missing = value is None or (isinstance(value, float) and value != value)
    return "there is no value" if missing else f"{value!r:.40} is not a number"
