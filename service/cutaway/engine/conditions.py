"""Explanations of those examples alone whose prediction calls for one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

import numpy as np
import torch
from torch import Tensor

from cutaway.engine.features import Features
from cutaway.engine.methods import method_of
from cutaway.engine.subject import Outputs
from cutaway.engine.witness import Question
from cutaway.errors import Reason, error
from cutaway.requests import Expectation, ExplainIf
from cutaway.results import AttributionResult, ClassPrediction, Warning, WarningCode
from cutaway.tensors import Array


def qualifying(condition: ExplainIf | None, predicted: Sequence[ClassPrediction]) -> list[int] | None:
    """The rows that qualify; None where nothing is asked of them.

    Raises:
        InvalidArgument: the model has no classes.
    """
    if condition is None:
        return None
    if not predicted:
        raise error(
            Reason.INVALID_VALUE,
            "the model has no classes, and so no probability to ask for: leave it out",
            "explain_if",
        )
    return [row for row, each in enumerate(predicted) if _qualifies(condition, each)]


def _qualifies(condition: ExplainIf, predicted: ClassPrediction) -> bool:
    least, most = condition.probability_at_least, condition.probability_at_most
    return (
        (least is None or predicted.probability >= least)
        and (most is None or predicted.probability <= most)
        and (not condition.classes or predicted.index in condition.classes)
    )


def left_out(condition: ExplainIf | None, predicted: Sequence[ClassPrediction]) -> tuple[Warning, ...]:
    """A warning for the rows that do not qualify."""
    worth = qualifying(condition, predicted)
    if worth is None or len(worth) == len(predicted):
        return ()
    others = [row for row in range(len(predicted)) if row not in worth]
    listed = ", ".join(f"{row} (class {predicted[row].index}, {predicted[row].probability:.3g})" for row in others[:8])
    what = "are zeros" if worth else "were not computed"
    return (
        Warning(
            WarningCode.NOT_EXPLAINED,
            "explain_if",
            f"{len(others)} of {len(predicted)} rows do not qualify, and their attributions {what}: {listed}"
            f"{', ...' if len(others) > 8 else ''}",
        ),
    )


def explained_where(
    worth: Sequence[int] | None, asked: Question, explain: Callable[[Question], AttributionResult]
) -> AttributionResult:
    """The explanation of the rows ``worth`` it, in the places of the whole batch: zeros in the others. Nothing is run
    where no row qualifies."""
    if worth is None or len(worth) == asked.rows:
        return explain(asked)
    if not worth:
        return AttributionResult(type(asked.request).__name__, asked.module, {})
    narrow = narrowed(asked, worth)
    result = explain(asked if narrow is None else narrow)
    return _in_place(result, worth, asked.rows, whole=narrow is None)


def of_rows(outputs: Outputs, asked: Question, worth: Sequence[int] | None) -> Outputs:
    """What the model returned, for the rows that ``asked`` has: those ``worth`` it where it has no others."""
    if worth is None or len(next(iter(outputs.values()))) == asked.rows:
        return outputs
    return {name: output[list(worth)] if output.ndim else output for name, output in outputs.items()}


def narrowed(asked: Question, worth: Sequence[int]) -> Question | None:
    """``asked`` about some rows; None where rows must stay together: they have numbers of their own in edits or in the
    target, or in what is drawn for the whole batch."""
    if asked.keeps_rows or method_of(asked.request).draws or asked.request.metrics:
        return None
    rows = list(worth)

    def some(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor[rows] for name, tensor in tensors.items()}

    starts = dict(asked.baselines)
    return replace(
        asked,
        inputs=some(asked.inputs),
        chosen=asked.chosen.taking(torch.tensor(rows, device=asked.subject.device)),
        baselines=starts if isinstance(asked.request, Expectation) else some(starts),
        features=_features(asked.features, rows, asked.rows),
    )


def _features(parts: Features, rows: Sequence[int], batch: int) -> Features:
    numbers = {
        name: each[list(rows)] if len(each) == batch and batch > 1 else each for name, each in parts.numbers.items()
    }
    return replace(parts, numbers=numbers, baselines={name: each[list(rows)] for name, each in parts.baselines.items()})


def _in_place(result: AttributionResult, worth: Sequence[int], batch: int, *, whole: bool) -> AttributionResult:
    """Every array of ``result`` with zeros for the rows that are not worth an explanation."""
    count = batch if whole else len(worth)

    def placed(array: Array) -> Array:
        if array.shape[:1] != (count,):
            raise error(
                Reason.METHOD_INAPPLICABLE,
                f"the explanation has shape {list(array.shape)}, and no axis of rows to leave some out: ask without "
                "explain_if",
                "explain_if",
            )
        found = np.zeros((batch, *array.shape[1:]), array.dtype)
        found[list(worth)] = array[list(worth)] if whole else array
        return found

    arrays = {
        field.name: placed(value)
        for field in fields(result)
        if isinstance(value := getattr(result, field.name), np.ndarray)
    }
    tokens = result.tokens
    if tokens is not None:
        tokens = replace(tokens, ids=placed(tokens.ids), values=placed(tokens.values))
    return replace(
        result,
        **arrays,  # type: ignore[arg-type]
        values={name: placed(value) for name, value in result.values.items()},
        tokens=tokens,
        metrics=tuple(replace(metric, values=placed(metric.values)) for metric in result.metrics),
    )
