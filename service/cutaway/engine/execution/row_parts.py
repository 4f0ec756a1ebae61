"""Main passes and attributions in parts of the rows, where memory does not allow all rows at one time.

Only rows that are proven to be independent run apart, and only where nothing in the request is about the batch as a
whole: then each row has the values that it has beside the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from cutaway.contract import requests, results
from cutaway.contract.errors import at
from cutaway.contract.results.arrays import ArrayField, with_arrays
from cutaway.contract.results.explanations import WORST_FIRST
from cutaway.contract.tensors import Array
from cutaway.contract.values import changed
from cutaway.engine.checks.row_independence import HookPoint, rows_independent
from cutaway.engine.execution.main_pass import MainPass, run_main_pass
from cutaway.engine.hooks.capture_spec import CapturedValues
from cutaway.engine.hooks.recording import RecordedCall, Recording
from cutaway.engine.methods.captum_call import method_of
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.model.session import ran_out_of_memory
from cutaway.engine.passes.pass_recorder import AttributionProblem, concatenated, neuron_output
from cutaway.engine.passes.targets import resolve_target
from cutaway.engine.planning.plan import RequestPlan

T = TypeVar("T")


def in_parts(rows: int, run: Callable[[range], T]) -> list[T]:
    """Returns what ``run`` returns for parts of ``rows``, in their order: each has half of them, or as many as fit."""
    done, first, size = [], 0, (rows + 1) // 2
    while first < rows:
        part = range(first, min(first + size, rows))
        try:
            done.append(run(part))
            first = part.stop
        except Exception as failure:
            if not ran_out_of_memory(failure) or len(part) == 1:
                raise
            size = (len(part) + 1) // 2
    return done


def _independent(model: InspectedModel, inputs: Inputs, places: Collection[HookPoint], output: str) -> bool:
    """Returns whether rows are proven to be independent; False where the proof does not fit."""
    if model.proofs.rehearses:  # what it tests is how rows run together
        return False
    try:
        return rows_independent(model, inputs, places, output)
    except Exception as failure:
        if not ran_out_of_memory(failure):
            raise
        return False


def rows_may_be_copied(plan: RequestPlan, places: Collection[HookPoint], output: str) -> bool:
    """Returns whether rows of ``plan`` have the same values at ``places`` and in ``output`` beside copies of them."""
    return _independent(plan.model, plan.inputs, places, output)


def independence_key(plan: RequestPlan) -> Hashable:
    """Returns what decides where rows must be independent; requests that capture the same have one object for it."""
    layers = tuple(name for attribution in plan.attributions for name in attribution.layers)
    return id(plan.sites), layers, *_differentiated_outputs(plan)


def _differentiated_outputs(plan: RequestPlan) -> Iterator[str]:
    """Yields the outputs whose gradients the request takes."""
    yield plan.request.target.output
    targets = [attribution.request.target for attribution in plan.attributions]
    yield from (target.output for target in targets if target is not None)


def plan_rows_independent(plan: RequestPlan, beside: Sequence[Inputs] = ()) -> bool:
    """Returns whether rows are independent wherever ``plan`` captures, explains or differentiates; ``beside`` has the
    inputs of all that would share its passes."""
    layers = {(name, requests.Point.OUTPUT) for attribution in plan.attributions for name in attribution.layers}
    places = {(name, point) for name, specs in plan.sites.items() for point in specs} | layers
    try:
        return all(
            rows_independent(plan.model, plan.inputs, places, output, beside)
            for output in {*_differentiated_outputs(plan)}
        )
    except BaseException:  # the request fails alone, with its own error
        return False


# Attributions.


def rows_divide(problem: AttributionProblem) -> bool:
    """Returns whether ``problem`` has the same values in parts of its rows."""
    request, method = problem.request, method_of(problem.request)
    of_batch = problem.is_row_specific or method.uses_randomness or request.is_judged
    if problem.rows < 2 or of_batch or getattr(request, "max_delta", None) is not None:
        return False
    places = {(name, requests.Point.OUTPUT) for name in problem.modules}
    source = "" if problem.target.is_neuron else problem.target.source
    return _independent(problem.model, problem.inputs, places, source)


def of_rows(problem: AttributionProblem, main: MainPass, rows: Sequence[int]) -> tuple[AttributionProblem, MainPass]:
    """Returns ``problem`` and its main pass for the rows with the numbers ``rows``."""
    batch, index = main.batch, torch.tensor(rows, device=problem.model.device)
    outputs = dict(main.outputs)
    for name, output in main.outputs.items():
        if (axis := batch.axes.of_output(name, output, batch.rows)) is not None:
            outputs[name] = output.index_select(axis, index)
    return problem.of_rows(rows), main._replace(outputs=outputs, batch=batch._replace(rows=len(rows)))


Checked = TypeVar("Checked", results.AttributionResult, results.AttackResult)


def joined_parts(parts: Sequence[tuple[int, Checked]]) -> Checked:
    """Returns the result of all rows from the numbers of rows, and the results, of their parts."""
    sizes, (first, *others) = zip(*parts)
    further: list[Iterator[Array]] = [iter(_arrays(part)) for part in others]

    def joined(array: Array, field: ArrayField, *_: object) -> Array:
        arrays = [array, *(next(each) for each in further)]
        return np.concatenate(arrays) if field.by_row else array

    checks = tuple(_joined_check(several, sizes) for several in zip(*(part.checks for _, part in parts)))
    result: Checked = with_arrays(changed(first, checks=checks), joined)
    return result


def _arrays(result: Any) -> list[Array]:
    arrays: list[Array] = []

    def collect(array: Array, *_: object) -> Array:
        arrays.append(array)
        return array

    with_arrays(result, collect)
    return arrays


def _joined_check(checks: Sequence[results.Check], sizes: Sequence[int]) -> results.Check:
    """Returns the outcome of the worst part, with the outcome of each row if they differ."""
    worst = min(checks, key=lambda check: WORST_FIRST.index(check.verdict))
    alike = all((check.verdict, check.cause, check.rows) == (worst.verdict, worst.cause, ()) for check in checks)
    rows = [check.of_row(row) for check, size in zip(checks, sizes) for row in range(size)]
    first = sum(sizes[: checks.index(worst)])
    where = "" if alike else f"of the rows from {first} on, which ran together and are counted from 0: "
    return replace(
        worst,
        max_absolute_error=max(check.max_absolute_error for check in checks),
        max_relative_error=max(check.max_relative_error for check in checks),
        cosine=min(check.cosine for check in checks),
        tolerance=max(check.tolerance for check in checks),
        reason=worst.reason and where + worst.reason,
        rows=() if alike else tuple(rows),
    )


# Main passes.


def main_pass_that_fits(plan: RequestPlan) -> MainPass:
    """Runs the main pass of one request, in parts of its rows where all of them do not fit."""
    try:
        return run_main_pass([plan])[0]
    except Exception as failure:
        if not ran_out_of_memory(failure) or not plan_divides(plan):
            raise
    parts = in_parts(plan.rows, lambda rows: run_main_pass([_plan_of_rows(plan, rows)])[0])
    return _joined_main_pass(plan, parts)


def plan_divides(plan: RequestPlan) -> bool:
    """Returns whether the main pass of ``plan`` returns the same in parts of its rows.

    Edits, parameters' gradients, and targets other than classes, sums and norms of rows, may be about the batch.
    """
    request, target = plan.request, plan.request.target
    by_row = isinstance(
        target,
        (
            requests.PredictedClass,
            requests.ClassIndex,
            requests.TopK,
            requests.SequenceLogProbability,
            requests.OutputSum,
            requests.OutputNorm,
        ),
    )
    slices = (part for specs in plan.sites.values() for spec in specs.values() for part in spec.slices)
    of_batch = plan.parts or plan.edits or plan.parameters or request.compare or any(part.axis <= 0 for part in slices)
    if plan.rows < 2 or of_batch or not by_row or target.position is not None:
        return False
    places = {(name, point) for name, specs in plan.sites.items() for point in specs}
    return _independent(plan.model, plan.inputs, places, target.output)


def _plan_of_rows(plan: RequestPlan, rows: range) -> RequestPlan:
    request, target, own = plan.request, plan.request.target, slice(rows.start, rows.stop)
    if isinstance(target, requests.ClassIndex) and len(target.indices) == plan.rows:
        request = changed(request, target=replace(target, indices=target.indices[own]))
    return replace(plan, request=request, inputs={name: tensor[own] for name, tensor in plan.inputs.items()})


def _joined_main_pass(plan: RequestPlan, parts: Sequence[MainPass]) -> MainPass:
    """Returns the main pass of all rows of ``plan`` from those of its parts."""
    first = parts[0]
    batch, outputs = first.batch._replace(rows=plan.rows), {}
    for name, output in first.outputs.items():
        axis = batch.axes.of_output(name, output, first.batch.rows)
        outputs[name] = _joined([part.outputs[name] for part in parts], axis)
    recording = Recording()
    recording.operators = first.recording.operators
    for name, calls in first.recording.calls.items():
        others = [part.recording.calls[name] for part in parts[1:]]
        _require_same([len(calls), *map(len, others)])
        recording.calls[name] = [_joined_call(several) for several in zip(calls, *others)]
    timings = replace(first.timings)
    for field in fields(timings):
        setattr(timings, field.name, sum(getattr(part.timings, field.name) for part in parts))
    _require_same([part.input_gradients.keys() for part in parts])
    main = first._replace(
        plan=plan,
        recording=recording,
        timings=timings,
        outputs=outputs,
        batch=batch,
        input_gradients=concatenated([part.input_gradients for part in parts]),
    )
    if first.source is None:
        return main
    with at("target"):
        targets, source = resolve_target(
            plan.model, plan.request.target, outputs, batch, lambda module: neuron_output(None, module)
        )
    return main._replace(targets=targets, source=source)


def _joined_call(calls: Sequence[RecordedCall]) -> RecordedCall:
    first, own = calls[0], RecordedCall(calls[0].number, calls[0].step)
    own.dtypes, own.without_array = first.dtypes, first.without_array
    entries = [list(call.entries()) for call in calls]
    _require_same([[(point, path) for point, path, _ in several] for several in entries])
    for several in zip(*entries):
        point, path, _ = several[0]
        found = [part for _, _, part in several if part is not None]
        _require_same([part is None for _, _, part in several])
        own.store(point, path, _joined_part(found) if found else None)
    return own


def _joined_part(parts: Sequence[CapturedValues]) -> CapturedValues:
    axis, positions = parts[0].row_axis, [part.positions for part in parts if part.positions is not None]
    values = _joined([part.values for part in parts], axis)
    return CapturedValues(values, _joined(positions, axis) if positions else None, axis)


def _joined(parts: Sequence[Tensor], axis: int | None) -> Tensor:
    if axis is None:
        raise MemoryError("no axis of a tensor has the rows, by which it could be joined")
    return torch.cat(list(parts), dim=axis)


def _require_same(values: Sequence[object]) -> None:
    if any(value != values[0] for value in values):
        raise MemoryError("parts of the rows show other tensors than others, so that they cannot be joined")
