"""The protocol of data sets: rows, columns, and reading a range of rows; and columns from values of Arrow and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cutaway.contract.errors import Reason, error
from cutaway.contract.values import near_names


@dataclass(frozen=True)
class Unreadable:
    """A mark in place of a value that cannot be read; its row becomes a bad row.

    Attributes:
        reason: a sentence for a person.
    """

    reason: str


Column: TypeAlias = "npt.NDArray[Any] | list[Any]"
"""The values of one column, one per row: a list if they are ragged, texts, bytes or `Unreadable`."""


class Untyped(list[Any]):
    """A column of texts and `Unreadable` in a format without types, such as CSV: ids and labels are these texts."""

    def numbers(self) -> Column:
        """Returns the numbers in the texts, for an input; a text without one becomes `Unreadable`."""
        numbers: list[Any] = [read_number(text) if isinstance(text, str) else text for text in self]
        kinds = set(map(type, numbers))
        if kinds == {float} or (kinds <= {int, float} and max(map(abs, numbers), default=0) <= 2**53):
            return np.array(numbers)
        return numbers  # numpy would round whole numbers beside floats


def as_numbers(column: Column) -> Column:
    """Returns an `Untyped` column as numbers; other columns as they are."""
    return column.numbers() if isinstance(column, Untyped) else column


def read_number(text: str) -> int | float | Unreadable:
    """Returns the number in ``text``. Digits after a leading zero (``007``), or with ``_``, are a name."""
    digits = text.strip().lstrip("+-")
    if "_" not in digits and not (len(digits) > 1 and digits.isdigit() and digits[0] == "0"):
        try:
            if -(2**63) <= (whole := int(text)) < 2**64:
                return whole
        except ValueError:
            pass
        try:
            if math.isfinite(number := float(text)) or digits[0] in "iInN":  # 1e400 is not infinite
                return number
        except ValueError:
            pass
    return Unreadable(f"{text!r} is not a number" if digits else "the cell is empty")


class Source(Protocol):
    """A data set that is read range by range, by one thread at a time."""

    @property
    def rows(self) -> int:
        """The number of rows."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in order."""

    @property
    def fingerprint(self) -> str:
        """A SHA-256 in hex that changes with the data."""

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Column]:
        """Returns the rows [start, stop) of ``columns``; needs the memory of that range.

        Raises:
            InvalidArgument: ``COLUMN_NOT_FOUND``; ``DATA_UNREADABLE``, if the data can no longer be read.
        """


def check_columns(names: Sequence[str], known: Sequence[str]) -> None:
    """Raises ``COLUMN_NOT_FOUND`` for the first of ``names`` that is not in ``known``, with the nearest names."""
    for name in names:
        if name not in known:
            near = near_names(name, known, n=3)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            listed = ", ".join(map(repr, known[:_LISTED])) + (", ..." if len(known) > _LISTED else "")
            message = f"the data set has no column {name!r}{hint or '; it has'} {'' if hint else listed or 'none'}"
            raise error(Reason.COLUMN_NOT_FOUND, message.rstrip())


_LISTED = 20


# A column is an array for numbers of one shape, else a list.

MISSING = Unreadable("there is no value")
NOT_UTF8 = Unreadable("the text is not UTF-8")
_RAGGED = Unreadable("the value is a list whose parts differ in length or type")


def from_arrow(values: Any) -> Column:
    """Converts an Arrow array or chunked array.

    Tensors, lists of numbers and ``struct<values, shape>`` become arrays; images as Hugging Face stores them,
    ``struct<bytes, path>``, become their bytes. A null becomes `Unreadable`.
    """
    array = _combined(values)
    if array.null_count:
        column = from_arrow(array.drop_null())
        present = iter(column)
        items = [next(present) if valid else MISSING for valid in array.is_valid().to_pylist()]
        return Untyped(items) if isinstance(column, Untyped) else items
    kind = array.type
    if isinstance(kind, pa.FixedShapeTensorType):
        if pa.types.is_boolean(kind.value_type):
            return _booleans(array)
        tensors: npt.NDArray[Any] = array.to_numpy_ndarray()
        return tensors
    if isinstance(kind, pa.BaseExtensionType):
        return from_arrow(array.storage)
    if pa.types.is_dictionary(kind):
        return from_arrow(array.dictionary_decode())
    if pa.types.is_decimal(kind):
        return Untyped(array.cast(pa.string()).to_pylist())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _lists(array)
    if pa.types.is_struct(kind):
        return _structs(array)
    if pa.types.is_primitive(kind):
        numbers: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return numbers
    return _items(array)


def _booleans(array: Any) -> npt.NDArray[Any]:
    """Returns tensors of booleans, of which Arrow makes no arrays: it has eight of them in a byte."""
    kind = array.type
    flat: npt.NDArray[Any] = array.storage.flatten().to_numpy(zero_copy_only=False)
    tensors = flat.reshape(len(array), *kind.shape)
    return tensors.transpose(0, *(1 + axis for axis in kind.permutation)) if kind.permutation else tensors


def _items(array: Any) -> list[Any]:
    """Returns Python values; text that is not UTF-8, which Arrow does not check, becomes `Unreadable`."""
    try:
        items: list[Any] = array.to_pylist()
    except UnicodeDecodeError:
        return [_item(scalar) for scalar in array]
    return items


def _item(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return NOT_UTF8


def _combined(values: Any) -> Any:
    """Returns a chunked array as one array."""
    if not isinstance(values, pa.ChunkedArray):
        return values
    if values.num_chunks == 1:
        return values.chunk(0)
    if isinstance(values.type, pa.BaseExtensionType):
        storage = pa.chunked_array([chunk.storage for chunk in values.chunks], values.type.storage_type)
        return pa.ExtensionArray.from_storage(values.type, storage.combine_chunks())
    return values.combine_chunks()


def _lists(array: Any) -> Column:
    """Converts lists of numbers, or of lists of numbers, to arrays, and to one array if all have one length.

    Other lists stay lists.
    """
    inner = as_numbers(from_arrow(array.flatten()))
    lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False)
    if isinstance(inner, list) and not all(isinstance(item, np.ndarray) for item in inner):
        return [_RAGGED if isinstance(item, list) and None in item else item for item in _items(array)]
    if isinstance(inner, np.ndarray) and len(array) and (lengths == lengths[0]).all():
        return inner.reshape(len(array), int(lengths[0]), *inner.shape[1:])
    return [_stacked(part) for part in _split(inner, lengths)]


def _split(values: Column, lengths: npt.NDArray[Any]) -> Iterator[Column]:
    """Yields successive parts of ``values`` of the given lengths."""
    stops = np.cumsum(lengths).tolist()
    return (values[start:stop] for start, stop in zip([0, *stops], stops))


def _stacked(items: Column) -> Any:
    if isinstance(items, np.ndarray):
        return items
    return np.stack(items) if len({item.shape for item in items}) == 1 else _RAGGED


def _structs(array: Any) -> Column:
    """Converts structs: ragged tensors to arrays, images as Hugging Face stores them to bytes, all others to dicts."""
    names = {array.type.field(index).name for index in range(array.type.num_fields)}
    if names == {"values", "shape"}:
        return [*map(_shaped, from_arrow(array.field("values")), array.field("shape").to_pylist())]
    if names == {"bytes", "path"}:
        images = zip(array.field("bytes").to_pylist(), array.field("path").to_pylist())
        return [Unreadable(f"the image has only a path, {path!r}") if data is None else data for data, path in images]
    return _items(array)


def _shaped(values: Any, shape: Any) -> Any:
    if isinstance(values, Unreadable):
        return values
    try:
        return np.asarray(values).reshape(shape)
    except (TypeError, ValueError):
        return Unreadable(f"the values do not have the shape {shape}")


def from_values(values: Sequence[Any]) -> Column:
    """Converts values of JSON: numbers and lists of numbers of one type become arrays, None becomes `Unreadable`."""
    kinds = set(map(type, values))
    if kinds in ({int}, {float}, {bool}):
        numbers = np.array(values)
        return numbers if numbers.dtype.kind in ("f" if kinds == {float} else "biu") else list(values)
    items = [_value(value) for value in values]
    alike = {(item.shape, item.dtype) if isinstance(item, np.ndarray) else None for item in items}
    if len(alike) == 1 and None not in alike:  # numpy would round whole numbers beside floats
        return np.stack(items)
    return [item.item() if isinstance(item, np.ndarray) and not item.ndim else item for item in items]


def _value(value: Any) -> Any:
    """Returns a number or a rectangular list of numbers as an array; other values unchanged."""
    if value is None:
        return MISSING
    if not isinstance(value, (bool, int, float, list)):
        return value
    try:
        array = np.asarray(value)
    except ValueError:  # inner lists differ in length
        return _RAGGED
    if array.dtype.kind in "biuf":
        return array
    return value if array.dtype.kind == "U" or not isinstance(value, list) else _RAGGED
