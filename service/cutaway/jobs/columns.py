"""Converts the result of a batch to columns, which hold the parts of the result by row."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.requests import TopK
from cutaway.contract.results import AttributionResult, InspectResult, WarningCode
from cutaway.contract.results.arrays import Entry, by_name, entries, examples_first, numbered
from cutaway.contract.results.explanations import outcome_of_row
from cutaway.contract.tensors import Array
from cutaway.contract.values import near_names
from cutaway.jobs.sources.source import Column, Source, Unreadable, as_numbers, check_columns
from cutaway.jobs.spec import FEATURES, Job, RawInput, RequestTemplate, TensorColumn


class Cells(NamedTuple):
    """The values of one column for the rows of one batch.

    Attributes:
        name: the name of the column.
        about: the metadata of the column: ``kind``, ``attribution``, ``method``, ``layer``, ``point``, ...
        values: [batch, ...] for tensors and numbers; a list for texts, and for tensors that differ in shape.
        rows: the indices of the rows that have a value; None for all rows.
    """

    name: str
    about: Mapping[str, str]
    values: Array | list[Any]
    rows: Sequence[int] | None = None


def flattened(result: InspectResult, template: RequestTemplate, batch: int) -> Iterator[Cells]:
    """Yields the columns of ``result``, the answer to the request ``template`` for ``batch`` rows.

    Raises:
        InvalidArgument: ``INVALID_VALUE``: no axis of a tensor is the batch.
    """
    for cells in _columns(examples_first(result), template, batch):
        if len(cells.values) != batch:
            raise _not_of_rows(f"{cells.name} has {len(cells.values)} values for {batch} rows")
        yield cells


def _not_of_rows(what: str) -> CutawayError:
    text = f"{what}, so its values do not belong to single rows; leave it out of the request"
    return error(Reason.INVALID_VALUE, text, "request")


def _columns(result: InspectResult, template: RequestTemplate, batch: int) -> Iterator[Cells]:
    """Yields all columns of a batch's result: arrays, names of classes, outcomes of checks, tokens and warnings."""
    explained = None if result.explained_rows is None else np.flatnonzero(result.explained_rows).tolist()
    names = tuple(numbered(_attribution_names(template)))
    named = [_renamed(entry, names) for entry in entries(result)]
    for name, entry in by_name(named, _OWN).items():
        if entry.example_axis is None:
            raise _not_of_rows(f"{name} has no axis of rows in its shape {list(entry.array.shape)}")
        array = entry.array if entry.is_tensor else entry.array.astype(entry.field.number)
        yield Cells(name, _about(entry), array, None if entry.attribution is None else explained)
    if result.classes:
        yield Cells("prediction_name", {"kind": "prediction_name"}, [prediction.label for prediction in result.classes])
    for name, attribution in zip(names, result.attributions):
        yield from _outcomes(name, attribution, explained, batch)
    tokens = next((attribution.tokens for attribution in result.attributions if attribution.tokens is not None), None)
    if tokens is not None and tokens.texts:
        yield Cells("tokens", {"kind": "tokens"}, [list(row) for row in tokens.texts])
    # The rows that were not explained have a column of their own.
    warnings = [warning for warning in result.warnings if warning.code is not WarningCode.NOT_EXPLAINED]
    texts = [f"{warning.code} {warning.subject}: {warning.message}" for warning in warnings]
    yield Cells("warnings", {"kind": "warnings"}, [texts] * batch)


_OWN = ("row", "id", "label", "residual", "error", "error_message", "prediction_name", "tokens", "warnings")
"""The columns of a table that are no arrays of a result."""


def _attribution_names(template: RequestTemplate) -> Iterator[str]:
    """Yields a name for every attribution of the result.

    A top-k target has k attributions, of which the class with the largest score comes first.
    """
    for name, attribution in zip(template.names, template.request.attributions):
        target = attribution.target or template.request.target
        yield from [name] * (target.k if isinstance(target, TopK) else 1)


def _renamed(entry: Entry, names: Sequence[str]) -> Entry:
    """Returns ``entry`` with the job's name for its attribution."""
    owner = entry.attribution
    return entry if owner is None else entry._replace(attribution=owner._replace(name=names[owner.number]))


def _about(entry: Entry) -> dict[str, str]:
    about = {"kind": entry.kind}
    if entry.attribution is not None:
        about |= _about_attribution(entry.attribution.name, entry.attribution.result)
    if entry.place is not None:
        place = entry.place
        return {**about, "layer": place.module, "point": place.point.value, "call": str(place.call), "path": place.path}
    of = entry.field.of
    return {**about, of: entry.input if of == "input" else str(entry.key)} if of else about


def _about_attribution(name: str, attribution: AttributionResult) -> dict[str, str]:
    return {"attribution": name, "method": attribution.method, "layer": attribution.layer}


def _outcomes(
    name: str, attribution: AttributionResult, explained: Sequence[int] | None, batch: int
) -> Iterator[Cells]:
    """Yields an attribution's columns beside its arrays: skipped rows, verdicts, reasons and largest errors."""

    def cells(kind: str, values: Array | list[Any], rows: Sequence[int] | None = explained) -> Cells:
        return Cells(f"{kind}:{name}", {"kind": kind, **_about_attribution(name, attribution)}, values, rows)

    if explained is not None:
        skipped = np.ones(batch, bool)
        skipped[explained] = False
        yield cells("skipped", skipped, None)
    if attribution.checks:
        outcomes = [outcome_of_row(attribution.checks, row) for row in range(batch)]
        yield cells("verdict", [outcome.verdict.value for outcome in outcomes])
        yield cells("reason", [outcome.reason for outcome in outcomes])
        yield cells("largest_error", np.array([outcome.max_relative_error for outcome in outcomes], np.float64))


# Columns of features

_CHECKED_ROWS = 100
_NAMED = 5


def feature_columns(
    job: Job, table: Sequence[str], names: Mapping[str, Sequence[str]] | None = None
) -> dict[str, tuple[str, ...]]:
    """Returns the columns of inputs that are made from several columns, in the order of the input's features.

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
            resolved[name] = _in_order(columns, (names or {}).get(name, ()), spec)
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
    """Returns the columns that ``patterns`` name, once. Globs match neither the column of ids nor of labels."""
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


def _in_order(columns: tuple[str, ...], names: Sequence[str], spec: TensorColumn) -> tuple[str, ...]:
    """Returns ``columns`` in the order of ``names``, the model's features. Keeps their order if the model has no names,
    or if the job sets the order.

    A job sets the order with ``by_position``, or with a list in which no column has the name of a feature at another
    place.
    """
    chosen = set(names) <= set(columns) if spec.columns == FEATURES else set(names) == set(columns)
    if not names or (chosen and not spec.by_position):
        return tuple(names) or columns
    is_list = set(columns) == set(spec.columns)
    if len(names) != len(columns) or not (spec.by_position or (is_list and not _contradicts(columns, names))):
        _refuse_order(columns, names)
    return columns


def _contradicts(columns: Sequence[str], names: Sequence[str]) -> bool:
    """Returns whether a column has the name of a feature at another place, but for case and signs."""
    places = {_plain(name): place for place, name in enumerate(names)}
    return any(places.get(_plain(column), place) != place for place, column in enumerate(columns))


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.casefold()))


def _refuse_order(columns: Sequence[str], names: Sequence[str]) -> None:
    missing = [name for name in names if name not in columns]
    nearest = {_plain(column): column for column in columns}
    pairs = []
    for name in missing[:_NAMED]:
        close = near_names(_plain(name), nearest, 1)
        pairs.append(f"{name!r}" + (f" (did you mean {nearest[close[0]]!r}?)" if close else ""))
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    what = f"the model has {len(names)} features, and the job names {len(columns)} columns"
    if missing:
        what += f", none of which is {', '.join(pairs)}{more}"
    raise error(
        Reason.COLUMN_NOT_FOUND,
        f"{what}; rename the columns, list them in the order of the features, or say `by_position: true`",
    )


def _not_numeric(column: Column) -> str:
    """Returns what a column holds that has no numbers; ``""`` for one with numbers, or without any value."""
    numbers = as_numbers(column)
    if isinstance(numbers, np.ndarray):
        if numbers.dtype.kind not in "fiub":
            return f"holds {numbers.dtype}"
        return "" if numbers.ndim == 1 else f"holds arrays of shape {list(numbers.shape[1:])}"
    values = [value for value in column if not (value is None or isinstance(value, Unreadable) or _is_blank(value))]
    if not values or any(isinstance(value, (int, float, np.number, np.bool_)) for value in numbers):
        return ""
    return f"holds {values[0]!r:.40}"


def _is_blank(value: object) -> bool:
    return isinstance(value, str) and not value.strip()
