"""A result as columns: what of it belongs to which example."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cutaway.engine.conditions import qualifying
from cutaway.errors import Reason, error
from cutaway.jobs.asked import Asked
from cutaway.jobs.blame import Ruling
from cutaway.requests import TopK
from cutaway.results import AttributionResult, InspectResult, Verdict, WarningCode
from cutaway.tensors import Array


class Cells(NamedTuple):
    """Some rows of one column.

    Attributes:
        name: the column's.
        about: what it holds, as words for programs: ``kind``, ``attribution``, ``method``, ``layer``, ``point``, ...
        values: [batch, ...] for a tensor or a number an example; a list for texts, or for tensors that differ in shape.
        rows: which rows of the batch have a value; None for all of them.
    """

    name: str
    about: Mapping[str, str]
    values: Array | list[Any]
    rows: Sequence[int] | None = None


Rulings = Sequence[Mapping[int, Ruling]]
"""For each explanation of an answer, what its checks come to for each row that was explained."""


def flattened(result: InspectResult, asked: Asked, batch: int, rulings: Rulings) -> Iterator[Cells]:
    """All columns of ``result``, the answer to ``asked`` about ``batch`` examples.

    Raises:
        InvalidArgument: ``INVALID_VALUE``: a tensor has no axis of examples.
    """
    for cells in _every(result, asked, batch, rulings):
        if len(cells.values) != batch:
            raise error(
                Reason.INVALID_VALUE,
                f"{cells.name} has {len(cells.values)} values for {batch} examples: it belongs to no single one, and "
                "cannot stand in a table of examples",
                "request",
            )
        yield cells


def _every(result: InspectResult, asked: Asked, batch: int, rulings: Rulings) -> Iterator[Cells]:
    if result.classes:
        yield Cells("prediction", {"kind": "prediction"}, np.array([each.index for each in result.classes], np.int64))
        yield Cells("prediction_name", {"kind": "prediction_name"}, [each.label for each in result.classes])
        yield Cells(
            "probability", {"kind": "probability"}, np.array([each.probability for each in result.classes], np.float64)
        )
    if result.targets is not None:
        yield Cells("target", {"kind": "target"}, result.targets)
    for name, array in result.predictions.items():
        yield Cells(f"output.{name}", {"kind": "output", "output": name}, array)
    yield from _attributions(result, asked, batch, rulings)
    for name, array in result.input_gradients.items():
        yield Cells(f"input_gradient.{name}", {"kind": "input_gradient", "input": name}, array)
    yield from _captures(result)
    said = [f"{each.code} {each.subject}: {each.message}" for each in result.warnings if _of_the_batch(each.code)]
    yield Cells("warnings", {"kind": "warnings"}, [said] * batch)


def _of_the_batch(code: WarningCode) -> bool:
    return code is not WarningCode.NOT_EXPLAINED  # which rows those are, columns of their own say


def _attributions(result: InspectResult, asked: Asked, batch: int, rulings: Rulings) -> Iterator[Cells]:
    worth = explained(result, asked)
    tokens = None
    for name, answer, ruled in zip(_names(asked), result.attributions, rulings):
        yield from _attribution(name, answer, worth, batch, ruled)
        tokens = tokens or answer.tokens
    if tokens is not None and tokens.texts:
        yield Cells("tokens", {"kind": "tokens"}, [list(row) for row in tokens.texts])


def explained(result: InspectResult, asked: Asked) -> list[int] | None:
    """The rows that were explained; None for all."""
    return qualifying(asked.request.explain_if, result.classes)


def answers(asked: Asked) -> Iterator[tuple[int, int]]:
    """Which explanation each answer is of, and its rank: of a top-k target there are k, the largest class first."""
    for number, each in enumerate(asked.request.attributions):
        target = each.target or asked.request.target
        yield from ((number, rank) for rank in range(target.k if isinstance(target, TopK) else 1))


def _names(asked: Asked) -> Iterator[str]:
    """A name for each answer."""
    return (f"{asked.names[number]}#{rank}" if rank else asked.names[number] for number, rank in answers(asked))


def _attribution(
    name: str, answer: AttributionResult, worth: Sequence[int] | None, batch: int, ruled: Mapping[int, Ruling]
) -> Iterator[Cells]:
    about = {"attribution": name, "method": answer.method, "layer": answer.layer}

    def cells(last: str, kind: str, values: Array | list[Any], **more: str) -> Cells:
        return Cells(f"{name}.{last}", {"kind": kind, **about, **more}, values, worth)

    if worth is not None:
        skipped = np.ones(batch, bool)
        skipped[list(worth)] = False
        yield Cells(f"{name}.skipped", {"kind": "skipped", **about}, skipped)
    for place, array in answer.values.items():
        yield cells(place, "attribution", array, input="" if answer.layer else place)
    if answer.convergence_delta is not None:
        yield cells("delta", "delta", answer.convergence_delta.astype(np.float64))
    for metric in answer.metrics:
        yield cells(metric.name, "metric", metric.values.astype(np.float64), metric=metric.name)
    if answer.tokens is not None:
        yield cells("tokens", "token_attribution", answer.tokens.values, input=answer.tokens.input)
    if answer.checks:
        each = [ruled.get(row, _UNRULED) for row in range(batch)]
        yield cells("verdict", "verdict", [one.verdict.value for one in each])
        yield cells("reason", "reason", [one.reason for one in each])
        yield cells("error", "largest_error", np.array([one.error for one in each], np.float64))


_UNRULED = Ruling(Verdict.NOT_APPLICABLE, "", 0.0)
"""In place of rows that were not explained, which no column shows."""


def _captures(result: InspectResult) -> Iterator[Cells]:
    for module, capture in result.captures.items():
        for index, call in enumerate(capture.calls):
            for point, leaves in call.leaves.items():
                about = {"kind": "capture", "layer": module, "point": point.value, "call": str(index)}
                for path, array in leaves.items():
                    number = f"#{index}" if index else ""
                    name = f"capture.{module}.{point.value}{path}{number}"
                    yield Cells(name, {**about, "path": path}, array)
                    positions = call.positions.get(point, {}).get(path)
                    if positions is not None:
                        yield Cells(f"{name}.positions", {**about, "kind": "positions", "path": path}, positions)
