"""Requests that ask the same of different inputs become one request for all their rows, whose result is split by rows.

Everything but the inputs is then done once for all of them: hooks, checks of names, targets, copies to the host.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from cutaway.engine.execution.row_range import CannotShare, RowRange, consecutive
from cutaway.engine.passes.repeated_batch import concatenated
from cutaway.engine.planning.plan import Plan
from cutaway.engine.runtime.cancellation import latest
from cutaway.frozen import changed
from cutaway.requests import ClassIndex, OutputNorm, OutputSum, PredictedClass
from cutaway.results import CapturedCall, InspectResult, ModuleCapture
from cutaway.schema.tensors import Array


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
    request, target = plan.request, plan.request.target
    by_row = isinstance(target, (PredictedClass, OutputSum, OutputNorm)) or (
        isinstance(target, ClassIndex) and len(target.indices) == 1
    )
    slices = (part for specs in plan.sites.values() for spec in specs.values() for part in spec.slices)
    if not by_row or plan.attributions or plan.failed or request.explain_if or any(part.axis <= 0 for part in slices):
        return number
    asked = (id(value) for name, value in vars(request).items() if name not in ("tensors", "raw"))
    return (id(plan.sites), *asked)  # callers who see other layers have other sites


def joined(plans: Sequence[Plan]) -> Plan:
    """Returns one plan for the rows of all ``plans``, which are of one bundle; of one plan, that plan."""
    if len(plans) == 1:
        return plans[0]
    cancellation = latest([plan.cancellation for plan in plans])
    return replace(plans[0], inputs=concatenated([plan.inputs for plan in plans]), cancellation=cancellation)


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

    def of_each(arrays: Mapping[str, Array]) -> dict[str, Array]:
        return {name: of(array) for name, array in arrays.items()}

    def of_call(call: CapturedCall) -> CapturedCall:
        leaves = {point: of_each(arrays) for point, arrays in call.leaves.items()}
        return CapturedCall(leaves, {point: of_each(arrays) for point, arrays in call.positions.items()})

    return changed(
        result,
        predictions=of_each(result.predictions),
        classes=result.classes[rows.start : rows.stop],
        targets=None if result.targets is None else of(result.targets),
        target_values=None if result.target_values is None else of(result.target_values),
        captures={name: ModuleCapture(tuple(map(of_call, capture.calls))) for name, capture in result.captures.items()},
        input_gradients=of_each(result.input_gradients),
    )
