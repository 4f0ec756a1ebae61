"""Codecs between results and `cutaway.v1.InspectResponse`, and the summary of a reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cutaway.contract import results as plain
from cutaway.contract.errors import Reason, at, error
from cutaway.contract.requests import POINTS as ALL_POINTS
from cutaway.contract.requests import Point
from cutaway.contract.results import Verdict
from cutaway.contract.results.arrays import ArrayField, array_fields
from cutaway.contract.results.changes import AttackedAttribution
from cutaway.contract.tensors import DTYPES, Array, dtype_name
from cutaway.contract.wire import scalars
from cutaway.contract.wire.codec import Codec, FieldRule, Rules, Spread, record, several, spread
from cutaway.contract.wire.scalars import DATA_TYPES, POINTS, VERDICTS
from cutaway.v1 import (
    attack_pb2,
    attribution_pb2,
    capture_pb2,
    check_pb2,
    inspection_pb2,
    inspection_service_pb2,
    model_pb2,
    tensor_pb2,
    worker_pb2,
)

# Stage times and check outcomes travel beside the serialised response, which the gateway does not read.


class CheckOutcome(NamedTuple):
    """The outcome of one check: Captum's class name of the method, and the verdict."""

    method: str
    verdict: Verdict


class ReplySummary(NamedTuple):
    """The stage times and check outcomes of a reply.

    Attributes:
        stages: the time of each stage that ran (``queue``, ``forward``, ...), in milliseconds.
        checks: the outcomes of checks, in the order of the reply.
    """

    stages: dict[str, float]
    checks: tuple[CheckOutcome, ...] = ()


def summarize(reply: worker_pb2.WorkerReply) -> ReplySummary:
    """Returns the summary of a reply whose timings are complete."""
    stages = {field.name.removesuffix("_ms"): value for field, value in reply.timings.ListFields()}
    checks = (CheckOutcome(check.method, VERDICTS.decode(check.verdict)) for check in reply.checks)
    return ReplySummary(stages, tuple(checks))


_Leaves: TypeAlias = dict[Point, dict[str, Array]]
_NOTHING: Mapping[str, Array] = MappingProxyType({})


NO_DATA = "no data"
"""The form of a message whose tensors have types and shapes, and no data."""


def encode(result: plain.InspectResult, form: str = "") -> inspection_pb2.InspectResponse:
    """Returns ``result`` as a message.

    Args:
        result: the result.
        form: of its tensors: `NO_DATA`, or a compression, where that makes them smaller; ``""`` for as they are.
    """
    message = inspection_pb2.InspectResponse()
    _codec(form).write(result, message)
    return message


def encode_own(result: plain.InspectResult) -> inspection_pb2.InspectResponse:
    """Returns what differs between answers to one question, but for tensors and timings: classes, targets, labels."""
    message = inspection_pb2.InspectResponse()
    _OWN.write(result, message.predictions)
    _write_labels(result.labels, message.labels)
    return message


def encode_part(part: plain.InspectResult, form: str = "", *, is_first: bool) -> inspection_pb2.InspectResponse:
    """Returns a part of a result as a message, as `encode`; only the first part has predictions that are empty."""
    message = encode(part, form)
    for name in ("provenance", "timings") if is_first else ("provenance", "timings", "predictions"):
        if not getattr(message, name).ByteSize():
            message.ClearField(name)
    return message


def decode(message: inspection_pb2.InspectResponse, form: str = "") -> plain.InspectResult:
    """Returns the result in ``message``. Its arrays are read-only views of the message; for the form `NO_DATA`,
    uninitialised arrays that the caller fills."""
    result: plain.InspectResult = _codec(form).read(message)
    return result


def _vector(dtype: type, *, empty_is_none: bool = True) -> FieldRule:
    """Returns the rule for a repeated number that is an array [batch]."""

    def write(array: Array | None, container: Any) -> None:
        if array is not None:
            container.extend(array.reshape(-1).tolist())

    def read(container: Any) -> Array | None:
        return np.fromiter(container, dtype, len(container)) if len(container) or not empty_is_none else None

    return FieldRule(codec=Codec(write, read))


def _named(tensor: Codec) -> Codec:
    """Returns the codec of a repeated `cutaway.v1.NamedTensor`, for a dict."""

    def write(arrays_by_name: Any, container: Any) -> None:
        for name, array in arrays_by_name.items():
            message = container.add()
            message.name = name
            tensor.write(array, message.tensor)

    def read(container: Any) -> dict[str, Any]:
        arrays_by_name = {}
        for message in container:
            with at(message.name):
                arrays_by_name[message.name] = tensor.read(message.tensor)
        return arrays_by_name

    return Codec(write, read)


def _write_outline(outline: plain.Outline, message: tensor_pb2.Tensor) -> None:
    message.data_type = DATA_TYPES[outline.data_type]
    message.shape.extend(outline.shape)


def _read_outline(message: tensor_pb2.Tensor) -> plain.Outline:
    return plain.Outline(scalars.data_type_of(message), tuple(message.shape))


def _write_without_data(array: Array, message: tensor_pb2.Tensor) -> None:
    _write_outline(plain.Outline(dtype_name(array), array.shape), message)


def _allocate(message: tensor_pb2.Tensor) -> Array:
    return np.empty(tuple(message.shape), DTYPES[scalars.data_type_of(message)])


def _write_feature_names(names: Mapping[str, tuple[str, ...]], container: Any) -> None:
    for name, features in names.items():
        container.add(input=name, names=features)


def _read_feature_names(container: Any) -> dict[str, tuple[str, ...]]:
    return {message.input: tuple(message.names) for message in container}


def _write_labels(labels: Mapping[int, str], container: Any) -> None:
    for index, label in labels.items():
        container.add(index=index, label=label)


def _read_labels(container: Any) -> dict[int, str]:
    return {message.index: message.label for message in container}


def _write_example_axes(axes: Mapping[str, int | None], container: Any) -> None:
    for name, axis in axes.items():
        container.add(tensor=name, axis=axis)


def _read_example_axes(container: Any) -> dict[str, int | None]:
    return {message.tensor: message.axis if message.HasField("axis") else None for message in container}


NAMED_TENSORS = _named(Codec(scalars.write, scalars.read))

PROVENANCE = record(plain.Provenance, model_pb2.Provenance)

TIMINGS = record(plain.Timings, inspection_pb2.Timings)

PROGRESS = record(plain.Progress, inspection_service_pb2.StreamProgress)

_CLASSES = several(record(plain.ClassPrediction, inspection_pb2.ClassPrediction))
_ROWS = FieldRule(codec=several(record(plain.RowCheck, check_pb2.RowCheck)))
_CHECK = record(plain.Check, check_pb2.Check, {"rows": _ROWS})
_CHECKS = several(_CHECK)
_ERROR = record(plain.AttributionError, attribution_pb2.AttributionError)
_WARNINGS = several(record(plain.Warning, inspection_pb2.Warning))
_ESTIMATE = record(
    plain.Estimate,
    inspection_pb2.Estimate,
    {"tensors": FieldRule(codec=_named(Codec(_write_outline, _read_outline)))},
)


@lru_cache
def _codec(form: str) -> Codec:
    """Returns the codec of results, by the form of their tensors; see `encode`."""
    tensor = Codec(partial(scalars.write, compression=form), scalars.read)
    if form == NO_DATA:
        tensor = Codec(_write_without_data, _allocate)
    of_result = _arrays(plain.InspectResult, tensor)
    tokens = record(plain.TokenAttribution, attribution_pb2.TokenAttribution, _arrays(plain.TokenAttribution, tensor))
    metric = record(plain.MetricResult, attribution_pb2.Metric, _arrays(plain.MetricResult, tensor))
    concept = record(
        plain.ConceptResult,
        inspection_pb2.ConceptResult,
        {**_arrays(plain.ConceptResult, tensor), "check": FieldRule(codec=_CHECK)},
    )
    of_influence = {**_arrays(plain.InfluenceResult, tensor), "check": FieldRule(codec=_CHECK)}
    influence = record(plain.InfluenceResult, inspection_pb2.InfluenceResult, of_influence)
    attribution = record(
        plain.AttributionResult,
        attribution_pb2.Attribution,
        {
            **_arrays(plain.AttributionResult, tensor),
            "checks": FieldRule(codec=_CHECKS),
            "tokens": FieldRule(codec=tokens),
            "metrics": FieldRule(codec=several(metric)),
            "error": FieldRule(codec=_ERROR),
        },
    )
    counterfactual = record(
        plain.CounterfactualResult,
        attack_pb2.Counterfactual,
        {**_arrays(plain.CounterfactualResult, tensor), "checks": FieldRule(codec=_CHECKS)},
    )
    agreement = record(plain.Agreement, inspection_pb2.Agreement, _arrays(plain.Agreement, tensor))
    attacked = record(
        AttackedAttribution,
        attack_pb2.AttackedAttribution,
        {**_arrays(AttackedAttribution, tensor), "attribution": FieldRule(codec=attribution)},
    )
    attack = record(
        plain.AttackResult,
        attack_pb2.Attack,
        {
            **_arrays(plain.AttackResult, tensor),
            "checks": FieldRule(codec=_CHECKS),
            "attributions": FieldRule(codec=several(attacked)),
        },
    )
    return record(
        plain.InspectResult,
        inspection_pb2.InspectResponse,
        {
            **of_result,
            "predictions": FieldRule(codec=_predictions(of_result)),
            "captures": FieldRule(codec=_captures(tensor)),
            "attributions": FieldRule(codec=several(attribution)),
            "attacks": FieldRule(codec=several(attack)),
            "unedited_predictions": FieldRule(codec=_unedited(of_result)),
            "warnings": FieldRule(codec=_WARNINGS),
            "provenance": FieldRule(codec=PROVENANCE),
            "timings": FieldRule(codec=TIMINGS),
            "estimate": FieldRule(codec=_ESTIMATE),
            "concepts": FieldRule(codec=several(concept)),
            "influence": FieldRule(codec=influence),
            "agreements": FieldRule(codec=several(agreement)),
            "counterfactual": FieldRule(codec=counterfactual),
            "feature_names": FieldRule(codec=Codec(_write_feature_names, _read_feature_names)),
            "labels": FieldRule(codec=Codec(_write_labels, _read_labels)),
            "example_axes": FieldRule(codec=Codec(_write_example_axes, _read_example_axes)),
        },
    )


def _arrays(kind: type, tensor: Codec) -> dict[str, FieldRule]:
    """Returns the rules of the fields of dataclass ``kind`` that have arrays."""
    return {name: _array_rule(kind, name, field, tensor) for name, field in array_fields(kind).items()}


def _array_rule(kind: type, name: str, field: ArrayField, tensor: Codec) -> FieldRule:
    if field.number is not None:
        return _vector(field.number, empty_is_none=hasattr(kind, name))  # which it has for a default
    return FieldRule(codec=_named(tensor) if field.named else tensor)


def _predictions(rules: Rules, without: Sequence[str] = ()) -> Spread:
    """Returns the converter of predictions and targets, ``without`` some fields. Targets [batch, k] travel as a flat
    list, with k beside it."""
    fields = inspection_pb2.Predictions.DESCRIPTOR.fields
    write_all, read_all = spread(
        plain.InspectResult,
        [field for field in fields if field.name not in ("targets_per_example", *without)],
        {
            **rules,
            "outputs": rules["predictions"]._replace(attribute="predictions"),
            "classes": FieldRule(codec=_CLASSES),
        },
    )

    def write(result: plain.InspectResult, message: inspection_pb2.Predictions) -> None:
        message.SetInParent()  # also if it stays empty
        write_all(result, message)
        if result.target_values is not None and result.target_values.ndim > 1:  # [batch, k]
            message.targets_per_example = result.target_values.shape[1]

    def read(message: inspection_pb2.Predictions) -> dict[str, Any]:
        arguments = read_all(message)
        k = message.targets_per_example
        for name in ("targets", "target_values") if k else ():
            if arguments[name] is not None:
                arguments[name] = _grid(arguments[name], k)
        return arguments

    return Spread(write, read)


_OWN = _predictions(_arrays(plain.InspectResult, NAMED_TENSORS), without=("outputs",))


def _grid(numbers: Array, k: int) -> Array:
    if len(numbers) % k:
        raise error(Reason.INVALID_VALUE, f"{len(numbers)} targets, {k} an example", "targets_per_example")
    return numbers.reshape(-1, k)


def _unedited(rules: Rules) -> Spread:
    fields = inspection_pb2.Predictions.DESCRIPTOR.fields_by_name
    return spread(
        plain.InspectResult,
        [fields["outputs"], fields["classes"]],
        {
            "outputs": rules["unedited"]._replace(attribute="unedited"),
            "classes": FieldRule("unedited_classes", _CLASSES),
        },
    )


def _captures(tensor: Codec) -> Codec:
    """Returns the codec of all captures: a message has one point of a module, a `plain.ModuleCapture` all of them."""

    def write(captures: Mapping[str, plain.ModuleCapture], container: Any) -> None:
        for name, capture in captures.items():
            present = {point for call in capture.calls for point in call.leaves}
            for point in ALL_POINTS if len(present) > 1 else present:
                if point in present:
                    message = container.add(module=name, point=POINTS.encode(point))
                    for call in capture.calls:  # also one without tensors at this point, which keeps its index
                        write_call(call, point, message.calls.add())

    def write_call(call: plain.CapturedCall, point: Point, message: capture_pb2.CapturedCall) -> None:
        positions = call.positions.get(point)
        for path, array in call.leaves.get(point, _NOTHING).items():
            leaf = message.leaves.add(path=path)
            tensor.write(array, leaf.tensor)
            if positions and path in positions:
                tensor.write(positions[path], leaf.positions)

    def read(container: Any) -> dict[str, plain.ModuleCapture]:
        """Returns one `plain.ModuleCapture` per module. Joins its messages, each of one hook point."""
        modules: dict[str, list[tuple[_Leaves, _Leaves]]] = {}
        for message in container:
            point = POINTS.decode(message.point)
            calls = modules.setdefault(message.module, [({}, {}) for _ in message.calls])
            for (leaves, positions), call in zip(calls, message.calls):
                for leaf in call.leaves:
                    leaves.setdefault(point, {})[leaf.path] = tensor.read(leaf.tensor)
                    if leaf.HasField("positions"):
                        positions.setdefault(point, {})[leaf.path] = tensor.read(leaf.positions)
        return {
            name: plain.ModuleCapture(tuple(plain.CapturedCall(*call) for call in calls))
            for name, calls in modules.items()
        }

    return Codec(write, read)
