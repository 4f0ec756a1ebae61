"""Attributions of only those rows whose prediction meets the request's ``explain_if``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from cutaway.contract.errors import Reason, error
from cutaway.contract.results import AttributionResult, Check, RowCheck, Verdict, Warning, WarningCode
from cutaway.contract.results.arrays import with_arrays
from cutaway.contract.tensors import Array
from cutaway.engine.execution.main_pass import MainPass
from cutaway.engine.methods.table import method_of
from cutaway.engine.passes.pass_recorder import AttributionProblem


def qualifying_rows(main: MainPass) -> list[int] | None:
    """Returns the rows that meet the request's ``explain_if``; None without one.

    Raises:
        InvalidArgument: the model has no classes.
    """
    condition = main.plan.request.explain_if
    if condition is None:
        return None
    predictions = main.predictions
    if not predictions:
        raise error(
            Reason.INVALID_VALUE,
            "the model has no classes, and so no probability to ask for: leave it out",
            "explain_if",
        )
    return [row for row, each in enumerate(predictions) if condition.qualifies(each.index, each.probability)]


def unexplained_rows(main: MainPass) -> Iterator[Warning]:
    """Yields a warning that names the rows that do not qualify, if there are any."""
    rows = qualifying_rows(main)
    predictions = () if rows is None else main.predictions
    if rows is not None and len(rows) < len(predictions):
        others = [(row, each) for row, each in enumerate(predictions) if row not in rows]
        listed = ", ".join(f"{row} (class {each.index}, {each.probability:.3g})" for row, each in others[:8])
        what = "are zeros" if rows else "were not computed"
        yield Warning(
            WarningCode.NOT_EXPLAINED,
            "explain_if",
            f"{len(others)} of {len(predictions)} rows do not qualify, and their attributions {what}: {listed}"
            f"{', ...' if len(others) > 8 else ''}",
        )


def attribute_rows(
    rows: Sequence[int] | None,
    problem: AttributionProblem,
    main: MainPass,
    attribute: Callable[[AttributionProblem, MainPass], AttributionResult],
) -> AttributionResult:
    """Computes the attribution of ``rows``, those that meet the request's condition; None means all rows.

    Returns:
        The attribution with the shape of the whole batch, 0 in other rows. If ``rows`` is empty it has no values, and
        the model does not run.
    """
    if rows is None or len(rows) == problem.rows:
        return attribute(problem, main)
    if not rows:
        return AttributionResult(type(problem.request).__name__, problem.module, {})
    # Edits, the target, or what is drawn for the whole batch may have values of their own for each row.
    if problem.is_row_specific or method_of(problem.request).uses_randomness or problem.request.metrics:
        return _placed(attribute(problem, main), rows, problem.rows, whole=True)
    outputs = {name: output[list(rows)] if output.ndim else output for name, output in main.outputs.items()}
    result = attribute(problem.of_rows(rows), main._replace(outputs=outputs))
    return _placed(result, rows, problem.rows, whole=False)


_NOT_CHECKED = RowCheck(0.0, Verdict.NOT_APPLICABLE)
"""The check of a row that does not qualify."""


def _placed(result: AttributionResult, rows: Sequence[int], batch: int, *, whole: bool) -> AttributionResult:
    """Returns every array of ``result`` with zeros in the other rows.

    Args:
        result: arrays ``[batch, ...]``, or without ``whole`` ``[len(rows), ...]``.
        rows: the rows that qualify.
        batch: the batch size.
        whole: whether ``result`` is of the whole batch.
    """
    count, index = batch if whole else len(rows), list(rows)

    def placed(array: Array, *_: object) -> Array:
        if array.shape[:1] != (count,):
            raise error(
                Reason.METHOD_INAPPLICABLE,
                f"the explanation has shape {list(array.shape)}, and no axis of rows to leave some out: ask without "
                "explain_if",
                "explain_if",
            )
        zeros = np.zeros((batch, *array.shape[1:]), array.dtype)
        zeros[index] = array[index] if whole else array
        return zeros

    def with_all_rows(check: Check) -> Check:
        if whole or not check.rows:
            return check
        by_row = dict(zip(rows, check.rows))
        return replace(check, rows=tuple(by_row.get(row, _NOT_CHECKED) for row in range(batch)))

    return with_arrays(replace(result, checks=tuple(map(with_all_rows, result.checks))), placed)
