"""Capture requests, and what edits share with them: where, and slices."""

from __future__ import annotations

from typing import Any

from cutaway.errors import Reason, error
from cutaway.requests import Capture, Max, Mean, Norm, Point, Reduction, Slice, TopElements
from cutaway.requests.captures import as_point
from cutaway.v1 import capture_pb2 as pb
from cutaway.wire.codec import Codec, FieldRule, record, several, spread
from cutaway.wire.enums import FLOATING_TYPE, POINTS
from cutaway.wire.oneof import OneOf
from cutaway.wire.scalars import at_least_one, distinct, given

SLICES = several(record(Slice, pb.AxisSlice, {"step": FieldRule(check=at_least_one)}))

REDUCTIONS: OneOf[Reduction] = OneOf(
    Reduction,
    pb.Reduction,
    "kind",
    "name a reduction: mean, max, norm or top_k",
    {"mean": Mean, "max": Max, "norm": Norm, "top_k": TopElements},
    rules={
        "axes": FieldRule(check=given("name at least one axis")),
        "k": FieldRule(check=at_least_one),
    },
)


def refuse_several_names(value: Any, *names: str) -> None:
    """Raises `InvalidArgument` unless exactly one of the attributes ``names`` of ``value`` is not empty."""
    count = sum(bool(getattr(value, name)) for name in names)
    if count != 1:
        raise error(Reason.INVALID_VALUE, f"give exactly one of {', '.join(names)}; got {count}", "where")


def refuse_no_name(message: Any, missing: str) -> None:
    """Raises `InvalidArgument` with the message ``missing`` unless a field of the ``oneof`` ``where`` has a name."""
    name = message.WhichOneof("where")
    if name is None or not getattr(message, name):
        raise error(Reason.INVALID_VALUE, missing, name or "where")


def _write_points(points: Any, container: Any) -> None:
    points = points if isinstance(points, tuple) else (points,)
    if not points:  # which means OUTPUT in a message
        raise error(Reason.INVALID_VALUE, "name at least one point")
    container.extend(POINTS.encode(as_point(point, "")) for point in points)


def _read_points(container: Any) -> tuple[Point, ...]:
    return several(POINTS).read(container) or (Point.OUTPUT,)


_FIELDS = spread(
    Capture,
    pb.CaptureRequest.DESCRIPTOR.fields,
    {
        "points": FieldRule("at", Codec(_write_points, _read_points), check=distinct),
        "slices": FieldRule(codec=SLICES),
        "reduction": FieldRule("reduce", REDUCTIONS.codec),
        "data_type": FieldRule(codec=FLOATING_TYPE),
    },
)


def _write(capture: Capture, message: pb.CaptureRequest) -> None:
    refuse_several_names(capture, "module", "op", "parameter")
    _FIELDS.write(capture, message)
    if capture.parameter and capture.points == (Point.OUTPUT,):  # Python's default; a parameter has no points
        del message.points[:]


def _read(message: pb.CaptureRequest) -> Capture:
    refuse_no_name(message, "name a module, an operator or a parameter")
    if message.HasField("parameter"):
        for field, _ in message.ListFields():
            if field.name in ("points", "call", "path"):
                raise error(Reason.INVALID_VALUE, f"a parameter has no {field.name}; leave it out", field.name)
    return Capture(**_FIELDS.read(message))


CAPTURES = several(Codec(_write, _read))
