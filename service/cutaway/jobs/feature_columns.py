"""Which columns of a table are the features of an input, and in which order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np

from cutaway.errors import CutawayError, Reason, at, error
from cutaway.jobs.sources.source import Column, Source, Unreadable, check_columns
from cutaway.jobs.spec import FEATURES, Job, RawInput, TensorColumn

_CHECKED_ROWS = 100
_NAMED = 5


def feature_columns(
    job: Job, table: Sequence[str], names: Mapping[str, Sequence[str]] | None = None
) -> dict[str, tuple[str, ...]]:
    """Returns the columns of each input that is made from several columns, in the order of the input's features.

    Args:
        job: the spec.
        table: the columns of the data set.
        names: the names that the model has for the features of its inputs. A table with columns of these names is
            taken in their order; its other columns are no features.

    Raises:
        InvalidArgument: ``COLUMN_NOT_FOUND``, with the field at fault.
    """
    others = [column.column for column in (job.id, job.label) if column is not None]
    resolved = {}
    for name, spec in _vectors(job).items():
        with at(f"inputs.{name}.columns"):
            columns = _expanded(spec.columns, table, others)
            resolved[name] = _in_order(columns, (names or {}).get(name, ()), spec.columns == FEATURES)
    return resolved


def check_numeric(source: Source, columns: Mapping[str, Sequence[str]]) -> None:
    """Raises ``INPUT_DTYPE`` if a column of features holds no numbers in the first rows."""
    for name, features in columns.items():
        data = source.read(0, min(source.rows, _CHECKED_ROWS), features)
        problems = [f"{feature!r} {what}" for feature in features if (what := _not_numeric(data[feature]))]
        if problems:
            shown = "; ".join(problems[:_NAMED]) + (f"; and {len(problems) - _NAMED} more" * (len(problems) > _NAMED))
            what = f"a feature is one number for each row: {shown}; encode such columns as numbers, or leave them out"
            raise error(Reason.INPUT_DTYPE, what, f"inputs.{name}.columns")


def _vectors(job: Job) -> dict[str, TensorColumn]:
    inputs = {} if isinstance(job.inputs, RawInput) else job.inputs
    return {name: spec for name, spec in inputs.items() if spec.columns}


def _expanded(patterns: tuple[str, ...] | str, table: Sequence[str], others: Collection[str]) -> tuple[str, ...]:
    """Returns the columns that ``patterns`` name, each once. Globs match neither the column of ids nor of labels."""
    free = [column for column in table if column not in others]
    if patterns == FEATURES:
        if not free:
            raise error(Reason.COLUMN_NOT_FOUND, "the data set has no column beside those of ids and labels")
        return tuple(free)
    columns: list[str] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matches = [column for column in free if fnmatchcase(column, pattern)]
        if pattern in table or not matches:
            check_columns([pattern], table)
            matches = [pattern]
        columns += matches
    return tuple(dict.fromkeys(columns))


def _in_order(columns: tuple[str, ...], names: Sequence[str], may_choose: bool) -> tuple[str, ...]:
    """Returns ``columns`` in the order of the model's ``names``; without columns of these names, as they are."""
    chosen = set(names) <= set(columns) if may_choose else set(names) == set(columns)
    if names and chosen:
        return tuple(names)
    if names and len(names) != len(columns):
        _refuse_count(columns, names)
    return columns


def _refuse_count(columns: Sequence[str], names: Sequence[str]) -> None:
    what = f"the model has {len(names)} features, and the job names {len(columns)} columns"
    missing = [name for name in names if name not in columns]
    if missing:
        try:
            check_columns(missing[:1], columns)
        except CutawayError as failure:
            what += f": {failure.message}"
    raise error(Reason.COLUMN_NOT_FOUND, what)


def _not_numeric(column: Column) -> str:
    """Returns what a column holds that has no numbers; ``""`` for one with numbers, or without any value."""
    if isinstance(column, np.ndarray):
        if column.dtype.kind not in "fiub":
            return f"holds {column.dtype}"
        return "" if column.ndim == 1 else f"holds arrays of shape {list(column.shape[1:])}"
    values = [value for value in column if value is not None and not isinstance(value, Unreadable)]
    if not values or any(isinstance(value, (int, float, np.number, np.bool_)) for value in values):
        return ""
    return f"holds {values[0]!r:.40}"
