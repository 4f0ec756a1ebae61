"""Converts numbers of a data set to the data types of inputs: each exactly, or with the reason why it cannot be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cutaway.contract.errors import Reason, error
from cutaway.contract.tensors import FLOATING, MOST_WHOLE, Array, fitted, whole_numbers
from cutaway.jobs.sources.source import Column, Unreadable, as_numbers


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
