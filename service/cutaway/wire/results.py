"""Answers and `cutaway.v1.InspectResponse`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from cutaway import results as plain
from cutaway.errors import Reason, error
from cutaway.requests import Point
from cutaway.tensors import Array
from cutaway.v1 import attribution_pb2, capture_pb2, check_pb2, inspection_pb2, model_pb2, tensor_pb2
from cutaway.wire import arrays
from cutaway.wire.enums import CAUSES, CHECK_MODES, DATA_TYPE_NAMES, DATA_TYPES, POINTS, VERDICTS, WARNINGS

_Leaves: TypeAlias = dict[Point, dict[str, Array]]


def encode(result: plain.InspectResult, compression: str = "") -> inspection_pb2.InspectResponse:
    """``result`` as a message, its tensors packed with ``compression`` where that makes them smaller."""
    return inspection_pb2.InspectResponse(
        predictions=inspection_pb2.Predictions(
            outputs=arrays.encode_named(result.predictions, compression),
            classes=_encode_classes(result.classes),
            targets=_numbers(result.targets),
            target_values=_numbers(result.target_values),
            targets_per_example=_per_example(result.target_values),
        ),
        captures=[
            message
            for name, capture in result.captures.items()
            for message in _encode_capture(name, capture, compression)
        ],
        input_gradients=arrays.encode_named(result.input_gradients, compression),
        parameter_gradients=arrays.encode_named(result.parameter_gradients, compression),
        attributions=[_encode_attribution(attribution, compression) for attribution in result.attributions],
        unedited_predictions=_encode_unedited(result, compression),
        warnings=[
            inspection_pb2.Warning(
                code=WARNINGS.to_wire(warning.code), subject=warning.subject, message=warning.message
            )
            for warning in result.warnings
        ],
        provenance=encode_provenance(result.provenance),
        timings=inspection_pb2.Timings(**vars(result.timings)),
        estimate=None if result.estimate is None else _encode_estimate(result.estimate),
    )


def decode(message: inspection_pb2.InspectResponse) -> plain.InspectResult:
    """The answer in ``message``; its arrays are read-only views of the message's bytes."""
    predictions = message.predictions
    return plain.InspectResult(
        predictions=arrays.decode_named(predictions.outputs),
        classes=_decode_classes(predictions.classes),
        targets=_grid(predictions.targets, np.int64, predictions.targets_per_example),
        target_values=_grid(predictions.target_values, np.float64, predictions.targets_per_example),
        captures=_decode_captures(message.captures),
        input_gradients=arrays.decode_named(message.input_gradients),
        parameter_gradients=arrays.decode_named(message.parameter_gradients),
        attributions=tuple(_decode_attribution(attribution) for attribution in message.attributions),
        unedited=arrays.decode_named(message.unedited_predictions.outputs),
        unedited_classes=_decode_classes(message.unedited_predictions.classes),
        warnings=tuple(
            plain.Warning(WARNINGS.to_plain(each.code), each.subject, each.message) for each in message.warnings
        ),
        provenance=decode_provenance(message.provenance),
        timings=plain.Timings(
            **{field.name: getattr(message.timings, field.name) for field in message.timings.DESCRIPTOR.fields}
        ),
        estimate=_decode_estimate(message.estimate) if message.HasField("estimate") else None,
    )


def encode_provenance(provenance: plain.Provenance) -> model_pb2.Provenance:
    """Where a result comes from, as a message."""
    fields = dict(vars(provenance))
    fields["data_type"] = DATA_TYPES.get(provenance.data_type, 0)
    return model_pb2.Provenance(**fields)


def decode_provenance(message: model_pb2.Provenance) -> plain.Provenance:
    """The same, backwards."""
    fields = {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
    fields["data_type"] = DATA_TYPE_NAMES.get(message.data_type, "")
    return plain.Provenance(**fields)


def _encode_estimate(estimate: plain.Estimate) -> inspection_pb2.Estimate:
    tensors = [
        tensor_pb2.NamedTensor(
            name=place, tensor=tensor_pb2.Tensor(data_type=DATA_TYPES[tensor.data_type], shape=tensor.shape)
        )
        for place, tensor in estimate.tensors.items()
    ]
    return inspection_pb2.Estimate(reply_bytes=estimate.reply_bytes, tensors=tensors, passes=estimate.passes)


def _decode_estimate(message: inspection_pb2.Estimate) -> plain.Estimate:
    tensors = {
        each.name: plain.Outline(arrays.type_of(each.tensor), tuple(each.tensor.shape)) for each in message.tensors
    }
    return plain.Estimate(message.reply_bytes, tensors, message.passes)


def _encode_unedited(result: plain.InspectResult, compression: str) -> inspection_pb2.Predictions | None:
    if not result.unedited and not result.unedited_classes:
        return None
    return inspection_pb2.Predictions(
        outputs=arrays.encode_named(result.unedited, compression),
        classes=_encode_classes(result.unedited_classes),
    )


def _encode_classes(classes: Iterable[plain.ClassPrediction]) -> list[inspection_pb2.ClassPrediction]:
    return [inspection_pb2.ClassPrediction(**vars(each)) for each in classes]


def _decode_classes(messages: Iterable[inspection_pb2.ClassPrediction]) -> tuple[plain.ClassPrediction, ...]:
    return tuple(plain.ClassPrediction(each.index, each.label, each.probability) for each in messages)


def _encode_capture(name: str, capture: plain.ModuleCapture, compression: str) -> Iterable[capture_pb2.Capture]:
    """A message for each point that any call showed. A call that showed nothing there keeps its place, empty."""
    for point in Point:
        if not any(point in call.leaves for call in capture.calls):
            continue
        calls = [capture_pb2.CapturedCall(leaves=_encode_leaves(call, point, compression)) for call in capture.calls]
        yield capture_pb2.Capture(module=name, point=POINTS.to_wire(point), calls=calls)


def _encode_leaves(call: plain.CapturedCall, point: Point, compression: str) -> Iterable[capture_pb2.CapturedLeaf]:
    positions = call.positions.get(point, {})
    for path, array in call.leaves.get(point, {}).items():
        yield capture_pb2.CapturedLeaf(
            path=path,
            tensor=arrays.encode(array, compression),
            positions=arrays.encode(positions[path], compression) if path in positions else None,
        )


def _decode_captures(messages: Iterable[capture_pb2.Capture]) -> dict[str, plain.ModuleCapture]:
    modules: dict[str, list[tuple[_Leaves, _Leaves]]] = {}
    for message in messages:
        point = POINTS.to_plain(message.point)
        calls = modules.setdefault(message.module, [({}, {}) for _ in message.calls])
        for (leaves, positions), seen in zip(calls, message.calls):
            for leaf in seen.leaves:
                leaves.setdefault(point, {})[leaf.path] = arrays.decode(leaf.tensor)
                if leaf.HasField("positions"):
                    positions.setdefault(point, {})[leaf.path] = arrays.decode(leaf.positions)
    return {
        name: plain.ModuleCapture(tuple(plain.CapturedCall(*call) for call in calls)) for name, calls in modules.items()
    }


def _encode_attribution(result: plain.AttributionResult, compression: str) -> attribution_pb2.Attribution:
    return attribution_pb2.Attribution(
        method=result.method,
        layer=result.layer,
        values=arrays.encode_named(result.values, compression),
        convergence_delta=_numbers(result.convergence_delta),
        value_at_input=_numbers(result.value_at_input),
        value_at_baseline=_numbers(result.value_at_baseline),
        targets=_numbers(result.targets),
        checks=[_encode_check(check) for check in result.checks],
        n_steps=result.n_steps,
        tokens=None if result.tokens is None else _encode_tokens(result.tokens, compression),
        metrics=[attribution_pb2.Metric(name=metric.name, values=_numbers(metric.values)) for metric in result.metrics],
    )


def _decode_attribution(message: attribution_pb2.Attribution) -> plain.AttributionResult:
    return plain.AttributionResult(
        method=message.method,
        layer=message.layer,
        values=arrays.decode_named(message.values),
        convergence_delta=_array(message.convergence_delta, np.float64),
        value_at_input=_array(message.value_at_input, np.float64),
        value_at_baseline=_array(message.value_at_baseline, np.float64),
        targets=_array(message.targets, np.int64),
        checks=tuple(_decode_check(check) for check in message.checks),
        n_steps=message.n_steps,
        tokens=_decode_tokens(message.tokens) if message.HasField("tokens") else None,
        metrics=tuple(plain.MetricResult(each.name, np.array(each.values, np.float64)) for each in message.metrics),
    )


def _encode_tokens(tokens: plain.TokenAttribution, compression: str) -> attribution_pb2.TokenAttribution:
    return attribution_pb2.TokenAttribution(
        input=tokens.input,
        ids=arrays.encode(tokens.ids, compression),
        values=arrays.encode(tokens.values, compression),
        texts=[attribution_pb2.TokenTexts(tokens=row) for row in tokens.texts],
    )


def _decode_tokens(message: attribution_pb2.TokenAttribution) -> plain.TokenAttribution:
    return plain.TokenAttribution(
        message.input,
        arrays.decode(message.ids),
        arrays.decode(message.values),
        tuple(tuple(row.tokens) for row in message.texts),
    )


def _encode_check(check: plain.Check) -> check_pb2.Check:
    fields = {
        **vars(check),
        "mode": CHECK_MODES.to_wire(check.mode),
        "verdict": VERDICTS.to_wire(check.verdict),
        "cause": 0 if check.cause is None else CAUSES.to_wire(check.cause),
    }
    return check_pb2.Check(**fields)


def _decode_check(message: check_pb2.Check) -> plain.Check:
    fields = {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
    fields["mode"] = CHECK_MODES.to_plain(message.mode)
    fields["verdict"] = VERDICTS.to_plain(message.verdict)
    fields["cause"] = CAUSES.to_plain(message.cause) if message.cause else None
    return plain.Check(**fields)


def _numbers(array: Array | None) -> list[Any]:
    return [] if array is None else list(array.reshape(-1).tolist())


def _per_example(array: Array | None) -> int:
    """How many numbers an example has in [batch, k]; 0 in [batch]."""
    return 0 if array is None or array.ndim == 1 else int(array.shape[1])


def _array(numbers: Iterable[float], dtype: type) -> Array | None:
    array: Array = np.array(list(numbers), dtype)
    return array if len(array) else None


def _grid(numbers: Iterable[float], dtype: type, per_example: int) -> Array | None:
    array = _array(numbers, dtype)
    if array is None or not per_example:
        return array
    if len(array) % per_example:
        raise error(Reason.INVALID_VALUE, f"{len(array)} targets, {per_example} an example", "targets_per_example")
    return array.reshape(-1, per_example)
