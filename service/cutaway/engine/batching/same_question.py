"""Requests that ask the same of different inputs become one request for all their rows, whose result is split by rows.

Everything but the inputs is then done once for all of them: hooks, checks of names, targets, Captum's passes, what
references have in common, copies to the host. The class and the baseline of a row may be its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeAlias, TypeVar

from cutaway.contract.requests import (
    Attribution,
    ClassIndex,
    InspectRequest,
    OutputNorm,
    OutputSum,
    PredictedClass,
    Target,
)
from cutaway.contract.results import AttributionResult, CapturedCall, Check, InspectResult, ModuleCapture
from cutaway.contract.tensors import Array, as_array
from cutaway.contract.values import changed
from cutaway.engine.methods.table import method_of
from cutaway.engine.passes.pass_recorder import ResolvedAttribution
from cutaway.engine.passes.repeated_batch import CannotShare, RowRange, concatenated, consecutive
from cutaway.engine.planning.plan import Plan
from cutaway.engine.runtime.interruption import latest

Request = TypeVar("Request", InspectRequest, Attribution)


def bundles(plans: Mapping[int, Plan]) -> list[dict[int, Plan]]:
    """Splits ``plans``, which may share a pass, into those that `joined` may join."""
    identical: dict[Hashable, dict[int, Plan]] = {}
    for number, plan in plans.items():
        identical.setdefault(_identity(plan) if _may_join(plan) else number, {})[number] = plan
    if len(identical) < 2:
        return [*identical.values()]
    alike: dict[Hashable, dict[int, Plan]] = {}
    for key, bundle in identical.items():
        question = key if isinstance(key, int) else _question(next(iter(bundle.values())))
        alike.setdefault(question, {}).update(bundle)
    return [*alike.values()]


def _identity(plan: Plan) -> Hashable:
    """Returns what plans have in common that ask the very same.

    What a decoder remembers is the same object in each request, and a comparison of objects is cheap.
    """
    return tuple(id(value) for name, value in vars(plan.request).items() if name not in ("tensors", "raw"))


def _question(plan: Plan) -> Hashable:
    """Returns what plans have in common that ask the same, by value: all but inputs, classes and baselines."""
    attributions = (changed(_without_classes(each.request), baselines=None) for each in plan.attributions)
    asked = changed(_without_classes(plan.request), tensors=None, raw=None, attributions=tuple(attributions))
    return _by_value(asked)


def _without_classes(request: Request) -> Request:
    target = request.target
    return changed(request, target=changed(target, indices=())) if isinstance(target, ClassIndex) else request


def _by_value(value: Any) -> Hashable:
    """Returns what is equal for equal values, of arrays and data types too."""
    if is_dataclass(value):
        return type(value), *(_by_value(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, Mapping):
        return frozenset((name, _by_value(each)) for name, each in value.items())
    if isinstance(value, (tuple, list)):
        return tuple(map(_by_value, value))
    if hasattr(value, "dtype"):
        array = as_array(value)
        return array.dtype.name, array.shape, array.tobytes()
    return type(value), value


def _may_join(plan: Plan) -> bool:
    """Whether nothing in ``plan`` is about rows by number, or about the batch as a whole."""
    slices = (part for specs in plan.sites.values() for spec in specs.values() for part in spec.slices)
    return (
        _is_by_row(plan.request.target)
        and all(map(_is_attributed_by_row, plan.attributions))
        and not (plan.failed or plan.request.explain_if)
        and not any(part.axis <= 0 for part in slices)
    )


def _is_by_row(target: Target | None) -> bool:
    """Whether ``target`` is found in each row without its number."""
    return isinstance(target, (PredictedClass, OutputSum, OutputNorm, type(None))) or (
        isinstance(target, ClassIndex) and len(target.indices) == 1
    )


def _is_attributed_by_row(attribution: ResolvedAttribution) -> bool:
    """Whether rows are independent in Captum's passes, and nothing is drawn or chosen for the batch as a whole."""
    request = attribution.request
    return (
        method_of(request).batchable
        and request.noise is None
        and not request.metrics
        and getattr(request, "max_delta", None) is None
        and _is_by_row(request.target)
        and all(len(mask) == 1 for mask in attribution.features.numbers.values())
    )


def joined(plans: Sequence[Plan]) -> Plan:
    """Returns one plan for the rows of all ``plans``, which are of one bundle; of one plan, that plan."""
    if len(plans) == 1:
        return plans[0]
    inputs, rows = concatenated([plan.inputs for plan in plans]), [plan.rows for plan in plans]
    attributions = (
        replace(
            each[0],
            request=_at_targets(each[0].request, [one.request.target for one in each], rows),
            inputs=inputs,
            baselines=concatenated([one.baselines for one in each]),
            is_batch_first=True,
        )
        for each in zip(*(plan.attributions for plan in plans))
    )
    return replace(
        plans[0],
        request=_at_targets(plans[0].request, [plan.request.target for plan in plans], rows),
        inputs=inputs,
        attributions=tuple(attributions),
        cancellation=latest([plan.cancellation for plan in plans]),
        parts=tuple(rows),
    )


def _at_targets(request: Request, targets: Sequence[Target | None], rows: Sequence[int]) -> Request:
    """Returns ``request`` with the target of each of ``rows``."""
    if all(target == targets[0] for target in targets):
        return request
    classes = [target for target in targets if isinstance(target, ClassIndex)]
    indices = tuple(index for target, count in zip(classes, rows) for index in target.indices * count)
    return changed(request, target=ClassIndex(indices, output=classes[0].output))


def split(result: InspectResult, sizes: Sequence[int]) -> list[InspectResult]:
    """Returns the results of requests of ``sizes`` rows, whose rows ``result`` has one behind the other.

    Raises:
        CannotShare: axis 0 of a tensor is not the batch.
    """
    if len(sizes) == 1:
        return [result]
    return [_part(result, rows, number, len(sizes)) for number, rows in enumerate(consecutive(sizes))]


def _part(result: InspectResult, rows: RowRange, number: int, parts: int) -> InspectResult:
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
        attributions=tuple(
            changed(_of_attribution(attribution, of), checks=_own(attribution.checks, number, parts))
            for attribution in result.attributions
        ),
    )


def _own(checks: tuple[Check, ...], number: int, parts: int) -> tuple[Check, ...]:
    """Returns the checks of one part: those of all parts follow each other."""
    each = len(checks) // parts
    return checks[number * each : (number + 1) * each]


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
