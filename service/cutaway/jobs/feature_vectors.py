"""Makes one vector for each row from columns with a number for each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cutaway.jobs.sources.source import Column, Unreadable
from cutaway.schema.tensors import Array


def feature_vectors(data: Mapping[str, Column], columns: Sequence[str], first: int) -> Column:
    """Returns the numbers of ``columns`` as [rows, columns]; a row without one of them is `Unreadable`.

    Args:
        data: the columns of some rows.
        columns: the names of the features, in order.
        first: the index of the first row in the data set, for messages.
    """
    problems: dict[int, list[str]] = {}
    arrays = []
    for name in columns:
        array, reasons = _numbers(data[name])
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
    """Returns a column as numbers [rows], and why rows have none; NaN stands for a missing value in a table."""
    if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "fiub":
        missing = np.isnan(column) if column.dtype.kind == "f" else np.zeros(len(column), bool)
        return column, {int(row): "there is no value" for row in np.flatnonzero(missing)}
    numbers = np.zeros(len(column))
    reasons = {}
    for row, value in enumerate(column):
        if isinstance(value, (int, float, np.number, np.bool_)) and value == value:
            numbers[row] = value
        else:
            reasons[row] = _reason(value)
    return numbers, reasons


def _reason(value: object) -> str:
    if isinstance(value, Unreadable):
        return value.reason
    return "there is no value" if value is None or value != value else f"{value!r:.40} is not a number"
