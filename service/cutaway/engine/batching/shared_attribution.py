"""Attributions that several requests of a batch want alike: Captum computes them at once, and rows are split after."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.contract.errors import CutawayError
from cutaway.contract.requests import Attribution
from cutaway.contract.results import AttributionResult
from cutaway.engine.execution.attribute import checked_result, problems, run_captum
from cutaway.engine.execution.main_pass import MainPass
from cutaway.engine.execution.shared_pass import CannotShare, RowRange, call_with, consecutive
from cutaway.engine.hooks.capture_spec import CapturedValues
from cutaway.engine.hooks.recording import RecordedCall
from cutaway.engine.methods.table import method_of
from cutaway.engine.passes.convergence_delta import CompletenessSums
from cutaway.engine.passes.pass_recorder import AttributionProblem, Pass
from cutaway.engine.passes.repeated_batch import concatenated
from cutaway.engine.passes.targets import ResolvedTarget, same_kind

ByNumber = dict[int, AttributionResult]
"""Attributions by their number in the request."""


@dataclass(frozen=True)
class _Candidate:
    """One attribution of one request that may be computed together with those of others.

    Attributes:
        request: the number of the request in the batch.
        index: the number of the attribution in the request.
        main: the main pass of the request.
        problem: the attribution and its target.
    """

    request: int
    index: int
    main: MainPass
    problem: AttributionProblem


def share_attributions(mains: Sequence[MainPass]) -> list[ByNumber]:
    """Computes the attributions that at least two requests of a batch want alike.

    Returns:
        For each request its attributions that were computed. The others, and those that failed, it computes alone.
    """
    results: list[ByNumber] = [{} for _ in mains]
    groups: list[list[_Candidate]] = []
    for candidate in _candidates(mains):
        group = next((each for each in groups if _alike(each[0], candidate)), None)
        if group is None:
            groups.append([candidate])
        else:
            group.append(candidate)
    for group in groups:
        if len(group) > 1:
            try:
                with group[0].problem.model.guard.removing_new_hooks():
                    computed = _attribute_together(group)
            except (CannotShare, CutawayError):
                continue  # alone each request gets its result, or its own error
            for candidate, result in zip(group, computed):
                results[candidate.request][candidate.index] = result
    return results


def _candidates(mains: Sequence[MainPass]) -> Iterator[_Candidate]:
    for number, main in enumerate(mains):
        for index, attribution in enumerate(main.plan.attributions):
            if main.plan.request.explain_if is None and rows_are_independent(attribution.request):
                try:
                    resolved = list(problems(main, index))
                except CutawayError:
                    continue
                if len(resolved) == 1:
                    yield _Candidate(number, index, main, resolved[0])


def rows_are_independent(request: Attribution) -> bool:
    """Whether rows are independent in Captum's passes, and nothing is drawn or chosen for the batch as a whole."""
    return (
        method_of(request).batchable
        and request.noise is None
        and not request.metrics
        and getattr(request, "max_delta", None) is None
    )


def _alike(one: _Candidate, other: _Candidate) -> bool:
    """Whether one call of Captum can compute both: the same method, parameters and check. Rows may differ in their
    baseline and class."""
    return (
        one.main.plan.request.check == other.main.plan.request.check
        and same_kind(one.problem.target, other.problem.target)
        and _equal(_for_all_rows(one.problem.request), _for_all_rows(other.problem.request))
        and all(len(mask) == 1 for mask in one.problem.features.numbers.values())
    )


def _for_all_rows(request: Attribution) -> Attribution:
    """Returns ``request`` without what may differ from row to row."""
    by_row = {name: None for name in ("target", "baselines") if name in request.__dataclass_fields__}
    return replace(request, **by_row)  # type: ignore[arg-type]


def _equal(one: Any, other: Any) -> bool:
    """Equality, of arrays too."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if is_dataclass(one):
        return all(_equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


def _attribute_together(group: Sequence[_Candidate]) -> list[AttributionResult]:
    """Calls Captum once for all rows of ``group``, and checks the rows of each request."""
    whole = _joined([each.problem for each in group])
    outputs = concatenated([each.main.outputs for each in group])
    values, passes, sums = run_captum(whole, group[0].main._replace(outputs=outputs))
    return [
        checked_result(
            each.problem,
            each.main,
            {name: rows.of(value) for name, value in values.items()},
            _own_passes(each.problem, passes, rows),
            None
            if sums is None
            else CompletenessSums(*map(rows.of, (sums.at_input, sums.at_baseline, sums.total, sums.mass))),
        )
        for each, rows in zip(group, consecutive([each.problem.rows for each in group]))
    ]


def _joined(problems: Sequence[AttributionProblem]) -> AttributionProblem:
    return replace(
        problems[0],
        inputs=concatenated([problem.inputs for problem in problems]),
        target=ResolvedTarget.joined([problem.target for problem in problems]),
        baselines=concatenated([problem.baselines for problem in problems]),
    )


def _own_passes(problem: AttributionProblem, passes: Sequence[Pass], rows: RowRange) -> list[Pass]:
    """Returns ``passes`` cut to ``rows``, the rows of one request. If the method runs several steps or samples in one
    pass, the cut passes are concatenated: the rows of a small request are spread over many passes of a large batch."""
    method = method_of(problem.request)
    own = [_rows_of_pass(each, rows.of_copies) for each in passes]
    several = method.reference_passes is None and method.points_per_pass(problem) > 1 and len(own) > 1
    return [_one_pass(own)] if several else own


def _rows_of_pass(each: Pass, cut: Callable[[Tensor], Tensor]) -> Pass:
    """Returns some rows of a pass that ran the batch once, or several copies of it."""

    def cut_call(call: RecordedCall) -> RecordedCall:
        return call_with(call, ((point, path, part and part.map(cut)) for point, path, part in call.entries()))

    return Pass(
        points={name: cut(tensor) for name, tensor in each.points.items()},
        additional_inputs=[cut(tensor) for tensor in each.additional_inputs],
        output=cut(each.output),
        cotangent=None if each.cotangent is None else cut(each.cotangent),
        gradients={name: cut(tensor) for name, tensor in each.gradients.items()},
        layer=[*map(cut_call, each.layer)],
    )


def _one_pass(passes: Sequence[Pass]) -> Pass:
    """Returns passes of the same rows as one pass, one behind the other."""
    first = passes[0]
    if len({(*each.gradients, each.cotangent is None, len(each.layer)) for each in passes}) > 1:
        raise CannotShare
    cotangents = [each.cotangent for each in passes if each.cotangent is not None]
    return Pass(
        points=concatenated([each.points for each in passes]),
        additional_inputs=[torch.cat(tensors) for tensors in zip(*(each.additional_inputs for each in passes))],
        output=torch.cat([each.output for each in passes]),
        cotangent=torch.cat(cotangents) if cotangents else None,
        gradients=concatenated([{name: each.gradients[name] for name in first.gradients} for each in passes]),
        layer=[_one_call(calls) for calls in zip(*(each.layer for each in passes))],
    )


def _one_call(calls: Sequence[RecordedCall]) -> RecordedCall:
    parts = [{(point, path): part for point, path, part in call.entries()} for call in calls]
    joined = []
    for point, path in parts[0]:
        shown = [part for each in parts if (part := each.get((point, path))) is not None]
        if len(shown) < len(calls):
            raise CannotShare
        joined.append((point, path, CapturedValues(torch.cat([part.values for part in shown]))))
    return call_with(calls[0], joined)
