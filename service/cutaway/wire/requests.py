"""Questions and `cutaway.v1.InspectRequest`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import DecodeError

from cutaway.errors import Reason, at, error
from cutaway.requests import (
    Attribution,
    Capture,
    CheckRequest,
    ClassIndex,
    InspectRequest,
    Point,
    PredictedClass,
    Raw,
    Target,
    field_name,
)
from cutaway.tensors import Array
from cutaway.v1 import attribution_pb2, capture_pb2, check_pb2, input_pb2, inspection_pb2, target_pb2
from cutaway.wire import arrays
from cutaway.wire.enums import CHECK_MODES, POINTS
from cutaway.wire.methods import BY_FIELD, CODECS
from cutaway.wire.strict import refuse_unserved

M = TypeVar("M")
T = TypeVar("T")


def encode(request: InspectRequest) -> inspection_pb2.InspectRequest:
    """``request`` as a message.

    Raises:
        InvalidArgument: for what the message cannot say.
    """
    if request.tensors and request.raw:
        raise error(Reason.INVALID_VALUE, "send tensors or raw bytes, not both", "raw")
    if not 0 <= request.max_reply_bytes < 2**64:
        raise error(Reason.INVALID_VALUE, f"{request.max_reply_bytes} bytes; from 0 up", "options.max_reply_bytes")
    message = inspection_pb2.InspectRequest(
        model=request.model,
        target=_encode_target(request.target),
        captures=[_in(f"captures[{i}]", _encode_capture, each) for i, each in enumerate(request.captures)],
        attributions=[
            _in(f"attributions[{i}]", _encode_attribution, each) for i, each in enumerate(request.attributions)
        ],
        check=check_pb2.CheckRequest(
            mode=CHECK_MODES.to_wire(request.check.mode),
            relative_tolerance=request.check.relative_tolerance,
        ),
        options=inspection_pb2.Options(max_reply_bytes=request.max_reply_bytes),
    )
    if request.raw:
        examples = [input_pb2.RawInput(data=raw.data, media_type=raw.media_type) for raw in request.raw]
        message.raw.CopyFrom(input_pb2.RawInputs(examples=examples))
    else:
        message.tensors.SetInParent()
        for name, array in request.tensors.items():
            with at(f"tensors.by_name.{name}"):
                message.tensors.by_name[name].CopyFrom(arrays.encode(array))
    if request.input_gradients is not None:
        message.input_gradients.CopyFrom(inspection_pb2.InputGradientRequest(inputs=request.input_gradients))
    return message


def decode(data: bytes) -> InspectRequest:
    """The question in a serialised `cutaway.v1.InspectRequest`.

    Raises:
        InvalidArgument: the bytes are no such message, or a field holds what it must not.
        Unimplemented: a field is set that is not served yet.
    """
    message = parsed(data)
    refuse_unserved(message)
    if not message.model:
        raise error(Reason.INVALID_VALUE, "name the model", "model")
    return InspectRequest(
        model=message.model,
        tensors=_decode_tensors(message),
        raw=tuple(Raw(raw.data, raw.media_type) for raw in message.raw.examples),
        target=_in("target", _decode_target, message.target),
        captures=tuple(
            _in(f"captures[{index}]", _decode_capture, capture) for index, capture in enumerate(message.captures)
        ),
        input_gradients=tuple(message.input_gradients.inputs) if message.HasField("input_gradients") else None,
        attributions=tuple(
            _in(f"attributions[{index}]", _decode_attribution, attribution)
            for index, attribution in enumerate(message.attributions)
        ),
        check=_in("check", _decode_check, message.check),
        max_reply_bytes=message.options.max_reply_bytes,
    )


def parsed(data: bytes) -> inspection_pb2.InspectRequest:
    """The message in ``data``."""
    try:
        return inspection_pb2.InspectRequest.FromString(data)
    except DecodeError:
        raise error(Reason.MALFORMED_REQUEST, f"the {len(data)} bytes are not a cutaway.v1.InspectRequest") from None


def _in(field: str, decode: Callable[[M], T], message: M) -> T:
    with at(field):
        return decode(message)


def _decode_tensors(message: inspection_pb2.InspectRequest) -> dict[str, Array]:
    found: dict[str, Array] = {}
    given = message.WhichOneof("input")
    if given is None:
        raise error(Reason.INPUT_MISSING, "send tensors by name, or raw bytes", "tensors")
    if given == "raw" and not message.raw.examples:
        raise error(Reason.INPUT_EMPTY, "raw holds no example; send at least one", "raw.examples")
    for name, tensor in message.tensors.by_name.items():
        with at(f"tensors.by_name.{name}"):
            found[name] = arrays.decode(tensor)
    return found


def _encode_target(target: Target) -> target_pb2.Target:
    message = target_pb2.Target(output=target.output)
    if isinstance(target, ClassIndex):
        message.class_index.indices.extend(target.indices)
    else:
        message.predicted_class.SetInParent()
    return message


def _decode_target(message: target_pb2.Target) -> Target:
    if message.HasField("class_index"):
        if not message.class_index.indices:
            raise error(Reason.TARGET_MISMATCH, "no class index; send one for all, or one an example", "class_index")
        return ClassIndex(tuple(message.class_index.indices), output=message.output)
    return PredictedClass(output=message.output)


def _encode_capture(capture: Capture) -> capture_pb2.CaptureRequest:
    if not capture.points:  # which means OUTPUT on the wire
        raise error(Reason.INVALID_VALUE, "name at least one point", "points")
    return capture_pb2.CaptureRequest(module=capture.module, points=[POINTS.to_wire(point) for point in capture.points])


def _decode_capture(message: capture_pb2.CaptureRequest) -> Capture:
    if not message.module:
        raise error(Reason.INVALID_VALUE, "name a module, or give a glob", "module")
    points: list[Point] = []
    for index, number in enumerate(message.points):
        with at(f"points[{index}]"):
            point = POINTS.to_plain(number)
            if point in points:
                raise error(Reason.INVALID_VALUE, f"{point.name} is there already; name each point once")
            points.append(point)
    return Capture(message.module, tuple(points) or (Point.OUTPUT,))


def _encode_attribution(request: Attribution) -> attribution_pb2.AttributionRequest:
    message = attribution_pb2.AttributionRequest(inputs=request.inputs)
    method = getattr(message, field_name(type(request)))
    with at(field_name(type(request))):
        method.CopyFrom(CODECS[type(request)].encode(request))
    method.SetInParent()
    if request.target is not None:
        message.target.CopyFrom(_encode_target(request.target))
    return message


def _decode_attribution(message: attribution_pb2.AttributionRequest) -> Attribution:
    field = message.WhichOneof("method")
    if field is None:
        raise error(Reason.INVALID_VALUE, "name a method", "method")
    kind = BY_FIELD[field]
    with at(field):
        parameters = CODECS[kind].decode(getattr(message, field))
    target = _in("target", _decode_target, message.target) if message.HasField("target") else None
    return kind(target=target, inputs=tuple(message.inputs), **parameters)


def _decode_check(message: check_pb2.CheckRequest) -> CheckRequest:
    with at("mode"):
        mode = CHECK_MODES.to_plain(message.mode)
    if not message.HasField("relative_tolerance"):
        return CheckRequest(mode)
    if not 0 <= message.relative_tolerance < math.inf:
        raise error(Reason.INVALID_VALUE, "a tolerance is a finite number from 0 up", "relative_tolerance")
    return CheckRequest(mode, message.relative_tolerance)
