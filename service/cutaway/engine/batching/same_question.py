"""Requests that ask the same of different inputs become one request for all their rows, whose result is split by rows.

Everything but the inputs is then done once for all of them: hooks, checks of names, targets, copies to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from cutaway.contract.requests import CheckMode, ClassIndex, OutputNorm, OutputSum, PredictedClass, Target
from cutaway.contract.results import AttributionResult, CapturedCall, InspectResult, ModuleCapture
from cutaway.contract.tensors import Array
from cutaway.contract.values import changed
from cutaway.engine.batching.shared_attribution import rows_are_independent
from cutaway.engine.execution.shared_pass import CannotShare, RowRange, consecutive
from cutaway.engine.passes.pass_recorder import ResolvedAttribution
from cutaway.engine.passes.repeated_batch import concatenated
from cutaway.engine.planning.plan import Plan
from cutaway.engine.runtime.interruption import latest


def bundles(plans: Mapping[int, Plan]) -> list[dict[int, Plan]]:
    """Splits ``plans``, which may share a pass, into those that `joined` may join."""
    by_question: dict[Hashable, dict[int, Plan]] = {}
    for number, plan in plans.items():
        by_question.setdefault(_question(number, plan), {})[number] = plan
    return list(by_question.values())


def _question(number: int, plan: Plan) -> Hashable:
    """Returns what plans have in common that ask the same; of others, nothing.

    What a decoder remembers is the same object in each request, and a comparison of objects is cheap. Requests are left
    alone if anything in them is about rows by number, or about the batch as a whole.
    """
    request = plan.request
    slices = (part for specs in plan.sites.values() for spec in specs.values() for part in spec.slices)
    if (
        not (_is_by_row(request.target) and all(map(_may_join, plan.attributions)))
        or (plan.attributions and request.check.mode is not CheckMode.OFF)  # a verdict is that of one request
        or plan.failed
        or request.explain_if
        or any(part.axis <= 0 for part in slices)
    ):
        return number
    asked = (id(value) for name, value in vars(request).items() if name not in ("tensors", "raw"))
    return tuple(asked)


def _is_by_row(target: Target) -> bool:
    """Whether ``target`` is found in each row without its number."""
    return isinstance(target, (PredictedClass, OutputSum, OutputNorm)) or (
        isinstance(target, ClassIndex) and len(target.indices) == 1
    )


def _may_join(attribution: ResolvedAttribution) -> bool:
    request = attribution.request
    return (
        rows_are_independent(request)
        and (request.target is None or _is_by_row(request.target))
        and all(len(mask) == 1 for mask in attribution.features.numbers.values())
    )


def joined(plans: Sequence[Plan]) -> Plan:
    """Returns one plan for the rows of all ``plans``, which are of one bundle; of one plan, that plan."""
    if len(plans) == 1:
        return plans[0]
    inputs = concatenated([plan.inputs for plan in plans])
    attributions = (
        replace(each[0], inputs=inputs, baselines=concatenated([one.baselines for one in each]))
        for each in zip(*(plan.attributions for plan in plans))
    )
    cancellation = latest([plan.cancellation for plan in plans])
    return replace(plans[0], inputs=inputs, attributions=tuple(attributions), cancellation=cancellation)


def split(result: InspectResult, sizes: Sequence[int]) -> list[InspectResult]:
    """Returns the results of requests of ``sizes`` rows, whose rows ``result`` has one behind the other.

    Raises:
        CannotShare: axis 0 of a tensor is not the batch.
    """
    return [result] if len(sizes) == 1 else [_part(result, rows) for rows in consecutive(sizes)]


def _part(result: InspectResult, rows: RowRange) -> InspectResult:
    def of(array: Array) -> Array:
        if array.shape[:1] != (rows.total,):
            raise CannotShare
        return array[rows.start : rows.stop]

    return changed(
        result,
        predictions=_each(result.predictions, of),
        classes=result.classes[rows.start : rows.stop],
        targets=None if result.targets is None else of(result.targets),
        target_values=None if result.target_values is None else of(result.target_values),
        captures={
            name: ModuleCapture(tuple(_of_call(call, of) for call in capture.calls))
            for name, capture in result.captures.items()
        },
        input_gradients=_each(result.input_gradients, of),
        attributions=tuple(_of_attribution(attribution, of) for attribution in result.attributions),
    )


_Cut: TypeAlias = Callable[[Array], Array]
"""Returns some rows of an array."""


def _each(arrays: Mapping[str, Array], of: _Cut) -> dict[str, Array]:
    return {name: of(array) for name, array in arrays.items()}


def _of_call(call: CapturedCall, of: _Cut) -> CapturedCall:
    leaves = {point: _each(arrays, of) for point, arrays in call.leaves.items()}
    return CapturedCall(leaves, {point: _each(arrays, of) for point, arrays in call.positions.items()})


def _of_attribution(result: AttributionResult, of: _Cut) -> AttributionResult:
    if result.error is not None:
        raise CannotShare  # alone each gets its result, or its own error
    tokens = result.tokens
    return changed(
        result,
        values=_each(result.values, of),
        tokens=None if tokens is None else changed(tokens, ids=of(tokens.ids), values=of(tokens.values)),
        **{name: of(array) for name in _BY_ROW if (array := getattr(result, name)) is not None},
    )


_BY_ROW = ("convergence_delta", "value_at_input", "value_at_baseline", "targets")
"""What an attribution has for each row."""
