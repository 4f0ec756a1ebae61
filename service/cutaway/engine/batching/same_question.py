"""Requests that ask the same of different inputs become one request for all their rows, whose result is split by rows.

Everything but the inputs is then done once for all of them: hooks, checks of names, targets, Captum's passes, what
references have in common, copies to the host. The class and the baseline of a row may be its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from cutaway.contract.requests import (
    Attribution,
    ClassIndex,
    InspectRequest,
    OutputNorm,
    OutputSum,
    PredictedClass,
    Target,
)
from cutaway.contract.results import Check, InspectResult
from cutaway.contract.results.arrays import ArrayField, with_arrays
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
        CannotShare: axis 0 of a tensor is not the batch, or an attribution failed.
    """
    if len(sizes) == 1:
        return [result]
    if any(attribution.error is not None for attribution in result.attributions):
        raise CannotShare  # alone each gets its result, or its own error
    return [_part(result, rows, number, len(sizes)) for number, rows in enumerate(consecutive(sizes))]


def _part(result: InspectResult, rows: RowRange, number: int, parts: int) -> InspectResult:
    own = slice(rows.start, rows.stop)

    def cut(array: Array, field: ArrayField, *_: object) -> Array:
        if not field.by_row:
            return array
        if array.shape[:1] != (rows.total,):
            raise CannotShare
        return array[own]

    attributions = tuple(
        changed(attribution, checks=_own(attribution.checks, number, parts)) for attribution in result.attributions
    )
    return with_arrays(changed(result, classes=result.classes[own], attributions=attributions), cut)


def _own(checks: tuple[Check, ...], number: int, parts: int) -> tuple[Check, ...]:
    """Returns the checks of one part: those of all parts follow each other."""
    size = len(checks) // parts
    return checks[number * size : (number + 1) * size]
