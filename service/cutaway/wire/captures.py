"""Capture requests, and what edits share with them: a place and slices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cutaway.errors import Reason, at, error
from cutaway.requests import Capture, Max, Mean, Norm, Point, Reduction, Slice, TopElements
from cutaway.v1 import capture_pb2 as pb
from cutaway.wire.enums import POINTS, decode_floating, encode_floating
from cutaway.wire.numbers import INT32, INT64, UINT32, at_least_one, whole, whole_if_given, wholes
from cutaway.wire.oneof import Codec, OneOf
from cutaway.wire.repeated import distinct, each


def encode(capture: Capture) -> pb.CaptureRequest:
    """``capture`` as a message."""
    message = pb.CaptureRequest(
        points=_encode_points(capture),
        slices=encode_slices(capture.slices),
        data_type=encode_floating(capture.data_type, "data_type"),
        call=whole_if_given("call", capture.call, UINT32),
        path=capture.path,
    )
    encode_where(message, module=capture.module, op=capture.op, parameter=capture.parameter)
    if capture.reduce is not None:
        with at("reduction"):
            REDUCTIONS.encode(capture.reduce, message.reduction)
    return message


def decode(message: pb.CaptureRequest) -> Capture:
    """The same, backwards.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, with the field at fault.
    """
    where = decode_where(message, "name a module, an operator or a parameter")
    if "parameter" in where:
        _refuse_points(message)
    points = distinct("points", each("points", POINTS.to_plain, message.points))
    return Capture(
        **where,
        at=points or (Point.OUTPUT,),
        call=message.call if message.HasField("call") else None,
        path=message.path,
        slices=decode_slices(message.slices),
        reduce=_decode_reduction(message),
        data_type=decode_floating(message.data_type, "data_type"),
    )


def encode_where(message: Any, **names: str) -> None:
    """Set the one of ``names`` that is given.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, where none is given, or several are.
    """
    given = {field: name for field, name in names.items() if name}
    if len(given) != 1:
        raise error(Reason.INVALID_VALUE, f"give exactly one of {', '.join(names)}; got {len(given)}", "where")
    for field, name in given.items():
        setattr(message, field, name)


def decode_where(message: Any, missing: str) -> dict[str, Any]:
    """The field of the ``oneof`` that is set, with its name.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, saying what is ``missing``.
    """
    field = message.WhichOneof("where")
    if field is None or not getattr(message, field):
        raise error(Reason.INVALID_VALUE, missing, field or "where")
    return {field: getattr(message, field)}


def encode_slices(slices: Iterable[Slice]) -> list[pb.AxisSlice]:
    """Slices as messages."""
    return each("slices", _encode_slice, slices)


def decode_slices(messages: Iterable[pb.AxisSlice]) -> tuple[Slice, ...]:
    """The same, backwards."""
    return tuple(each("slices", _decode_slice, messages))


def _encode_slice(part: Slice) -> pb.AxisSlice:
    return pb.AxisSlice(
        axis=whole("axis", part.axis, INT32),
        start=whole_if_given("start", part.start, INT64),
        stop=whole_if_given("stop", part.stop, INT64),
        step=whole_if_given("step", part.step, INT64),
    )


def _decode_slice(message: pb.AxisSlice) -> Slice:
    return Slice(
        message.axis,
        message.start if message.HasField("start") else None,
        message.stop if message.HasField("stop") else None,
        at_least_one("step", message.step) if message.HasField("step") else None,
    )


def _encode_points(capture: Capture) -> list[Any]:
    points = capture.points
    if not points:  # which means OUTPUT on the wire
        raise error(Reason.INVALID_VALUE, "name at least one point", "points")
    if capture.parameter and points == (Point.OUTPUT,):  # Python's default; a parameter has no points
        return []
    return [POINTS.to_wire(point) for point in points]


def _refuse_points(message: pb.CaptureRequest) -> None:
    for field, _ in message.ListFields():
        if field.name in ("points", "call", "path"):
            raise error(Reason.INVALID_VALUE, f"a parameter has no {field.name}; leave it out", field.name)


def _decode_reduction(message: pb.CaptureRequest) -> Reduction | None:
    if not message.HasField("reduction"):
        return None
    with at("reduction"):
        return REDUCTIONS.decode(message.reduction)


def _encode_axes(reduction: Mean | Max | Norm) -> pb.AxisReduction:
    return pb.AxisReduction(axes=wholes("axes", reduction.axes, INT32))


def _decode_axes(message: pb.AxisReduction) -> dict[str, Any]:
    if not message.axes:
        raise error(Reason.INVALID_VALUE, "name at least one axis", "axes")
    return {"axes": tuple(message.axes)}


REDUCTIONS: OneOf[Reduction] = OneOf(
    "kind",
    "name a reduction: mean, max, norm or top_k",
    {
        Mean: Codec("mean", _encode_axes, _decode_axes),
        Max: Codec("max", _encode_axes, _decode_axes),
        Norm: Codec("norm", _encode_axes, _decode_axes),
        TopElements: Codec(
            "top_k",
            lambda top: pb.TopElements(k=whole("k", top.k, UINT32), axis=whole("axis", top.axis, INT32)),
            lambda message: {
                "k": at_least_one("k", message.k),
                "axis": message.axis if message.HasField("axis") else -1,
            },
        ),
    },
)
