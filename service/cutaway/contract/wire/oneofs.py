"""Codecs of captures, edits and targets: messages with a field for each subclass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from cutaway.contract.errors import Reason, at, error
from cutaway.contract.requests import (
    Add,
    AddVector,
    Capture,
    Clamp,
    ClampDirection,
    ClassIndex,
    ClassLabel,
    CrossEntropy,
    Edit,
    MultiIndex,
    Neuron,
    OutputNorm,
    OutputSum,
    Point,
    Position,
    PredictedClass,
    Project,
    Reduction,
    Row,
    SequenceLogProbability,
    Slice,
    SwapDirections,
    Target,
    TopElements,
    VectorEdit,
)
from cutaway.contract.requests.captures import as_point, names_weights
from cutaway.contract.requests.fields import distinct, not_nan
from cutaway.contract.wire.codec import (
    REQUIRED_TENSOR,
    TENSOR,
    Codec,
    FieldRule,
    OneOf,
    Spread,
    only,
    record,
    several,
    spread,
)
from cutaway.contract.wire.scalars import FLOATING_TYPE, INT32, INT64, POINTS, REAL, UNSET, Scalar
from cutaway.v1 import capture_pb2, edit_pb2, target_pb2

SLICES = several(record(Slice, capture_pb2.AxisSlice))


# Positions: one attribute, in a field for numbers, one for texts and one for several.


def _token_text(text: str) -> str:
    if not text:
        raise error(Reason.INVALID_VALUE, "the text of a token has at least one character")
    return text


_TEXT = Scalar(lambda value: value if isinstance(value, str) else UNSET, _token_text)


def _number(numbers: Scalar) -> Scalar:
    return Scalar(lambda value: UNSET if isinstance(value, (str, tuple)) else numbers.encode(value), numbers.decode)


def _write_token(token: Position, message: capture_pb2.TokenPosition) -> None:
    if isinstance(token, str):
        message.position_text = token
    else:
        message.position = INT32.encode(token)


def _read_token(message: capture_pb2.TokenPosition) -> Position:
    if message.HasField("position_text"):
        with at("position_text"):
            return _token_text(message.position_text)
    if not message.HasField("position"):
        raise error(Reason.INVALID_VALUE, "name a token, by its number or its text", "token")
    return message.position


_TOKENS = only(capture_pb2.TokenPositions.DESCRIPTOR, several(Codec(_write_token, _read_token)))


def _position(attribute: str) -> dict[str, FieldRule]:
    """Returns the rules for the fields of a token by its number, by its text, and of several."""

    def write(part: Any, message: capture_pb2.TokenPositions) -> None:
        if isinstance(tokens := getattr(part, attribute), tuple):
            message.SetInParent()
            _TOKENS.write(tokens, message)

    def read(message: capture_pb2.TokenPositions) -> dict[str, Any]:
        return {attribute: _TOKENS.read(message)} if message.tokens else {}

    return {
        attribute: FieldRule(codec=_number(INT32)),
        f"{attribute}_text": FieldRule(attribute, _TEXT),
        f"{attribute}s": FieldRule(codec=Spread(write, read)),
    }


_POSITION = _position("position")

_OF_PROJECT = spread(
    Project,
    [field for field in capture_pb2.Project.DESCRIPTOR.fields if field.containing_oneof is None],
    {
        "then": FieldRule(
            codec=Codec(
                lambda value, message: REDUCTIONS.codec.write(value, message),
                lambda message: REDUCTIONS.codec.read(message),
            )
        )
    },
)


def _write_project(project: Project, message: capture_pb2.Project) -> None:
    _OF_PROJECT.write(project, message)
    if isinstance(project.to, str):
        message.module = project.to
    else:
        with at("matrix"):
            TENSOR.write(project.to, message.matrix)


def _read_project(message: capture_pb2.Project) -> dict[str, Any]:
    if message.WhichOneof("to") == "matrix":
        with at("matrix"):
            return {"to": TENSOR.read(message.matrix), **_OF_PROJECT.read(message)}
    if not message.module:
        raise error(Reason.INVALID_VALUE, "name a module, or send a matrix", "to")
    return {"to": message.module, **_OF_PROJECT.read(message)}


REDUCTIONS: OneOf[Reduction] = OneOf(
    Reduction,
    capture_pb2.Reduction,
    "kind",
    "name a reduction: mean, max, norm, top_k or project",
    named={"top_k": TopElements},
    special={Project: Spread(_write_project, _read_project)},
)


def require_one_name(value: Any, *names: str) -> None:
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
    """Writes the hook points of a capture. Refuses an empty tuple: an empty field means ``OUTPUT``."""
    points = points if isinstance(points, tuple) else (points,)
    if not points:  # which means OUTPUT in a message
        raise error(Reason.INVALID_VALUE, "name at least one point")
    container.extend(POINTS.encode(as_point(point, "")) for point in points)


def _read_points(container: Any) -> tuple[Point, ...]:
    return several(POINTS).read(container) or (Point.OUTPUT,)


_FIELDS = spread(
    Capture,
    capture_pb2.CaptureRequest.DESCRIPTOR.fields,
    {
        "points": FieldRule("at", Codec(_write_points, _read_points, refuses_empty=True), check=distinct),
        "slices": FieldRule(codec=SLICES),
        "reduction": FieldRule("reduce", REDUCTIONS.codec),
        "data_type": FieldRule(codec=FLOATING_TYPE),
        **_POSITION,
    },
)


def _write(capture: Capture, message: capture_pb2.CaptureRequest) -> None:
    require_one_name(capture, "module", "op", "parameter")
    _FIELDS.write(capture, message)
    if capture.parameter and capture.points == (Point.OUTPUT,):  # Python's default; a parameter has no points
        del message.points[:]


def _read(message: capture_pb2.CaptureRequest) -> Capture:
    refuse_no_name(message, "name a module, an operator or a parameter")
    if message.HasField("parameter"):
        for field, _ in message.ListFields():
            if field.name in ("points", "call", "path", "steps", "heads", *_POSITION):
                raise error(Reason.INVALID_VALUE, f"a parameter has no {field.name}; leave it out", field.name)
    capture = Capture(**_FIELDS.read(message))
    _refuse_position(capture, message)
    return capture


CAPTURES = several(Codec(_write, _read))


# Edits: a subclass and a message for each.


def _write_add(edit: Add, message: edit_pb2.Add) -> None:
    if isinstance(edit.addend, (int, float, np.integer, np.floating)):
        with at("scalar"):
            message.scalar = REAL.encode(edit.addend)
    else:
        with at("tensor"):
            TENSOR.write(edit.addend, message.tensor)


def _read_add(message: edit_pb2.Add) -> dict[str, Any]:
    kind = message.WhichOneof("addend")
    if kind is None:
        raise error(Reason.INVALID_VALUE, "send a scalar or a tensor to add", "addend")
    with at(kind):
        if kind == "tensor":
            return {"addend": TENSOR.read(message.tensor)}
        not_nan(message.scalar)
        return {"addend": message.scalar}


def _check_clamp(edit: Clamp | ClampDirection) -> None:
    if edit.minimum is None and edit.maximum is None:
        raise error(Reason.INVALID_VALUE, "send a minimum, a maximum or both")
    if edit.minimum is not None and edit.maximum is not None and edit.minimum > edit.maximum:
        raise error(Reason.INVALID_VALUE, f"the minimum {edit.minimum} is above the maximum {edit.maximum}")


_ROW = record(Row, edit_pb2.MatrixRow)


def _vector(attribute: str) -> dict[str, FieldRule]:
    """Returns the rules for the fields of a vector that is sent, and of one that a matrix has."""

    def write(codec: Codec, is_row: bool, edit: Any, message: Any) -> None:
        value = getattr(edit, attribute)
        if value is not None and isinstance(value, Row) is is_row:
            codec.write(value, message)

    def read(codec: Codec, message: Any) -> dict[str, Any]:
        return {attribute: codec.read(message)} if message.ByteSize() else {}

    return {
        name: FieldRule(codec=Spread(partial(write, codec, is_row), partial(read, codec)))
        for name, codec, is_row in ((attribute, TENSOR, False), (f"{attribute}_row", _ROW, True))
    }


def _check_vector(edit: VectorEdit) -> None:
    if edit.vector is None:
        raise error(Reason.INVALID_VALUE, "send the vector", "vector")
    if isinstance(edit, ClampDirection):
        _check_clamp(edit)
    if isinstance(edit, SwapDirections) and edit.other is None:
        raise error(Reason.INVALID_VALUE, "send the other direction", "other")


EDIT_KINDS: OneOf[Edit] = OneOf(
    Edit,
    edit_pb2.Edit,
    "kind",
    "say what to do: scale, add, replace, zero, clamp, mix, add_vector, clamp_direction or swap_directions",
    rules={
        "point": FieldRule("at", POINTS),
        "slices": FieldRule(codec=SLICES),
        "tensor": REQUIRED_TENSOR,
        "lambda": FieldRule("weight"),
        **_POSITION,
        **_position("source_position"),
        **_vector("vector"),
        **_vector("other"),
    },
    special={Add: Spread(_write_add, _read_add)},
    checks={Clamp: _check_clamp, **dict.fromkeys((AddVector, ClampDirection, SwapDirections), _check_vector)},
)


def _refuse_position(part: Capture | Edit, message: Any) -> None:
    """Refuses an empty list of positions, and that of an operator's tensor but weights of attention: its axis 1 may be
    that of heads."""
    if message.WhichOneof("token") == "positions" and not message.positions.tokens:
        raise error(Reason.INVALID_VALUE, "name at least one token", "positions.tokens")
    if part.op and part.position is not None and not names_weights(part.op):
        what = "positions are those of modules: take a part of an operator's by slices"
        raise error(Reason.INVALID_VALUE, what, message.WhichOneof("token"))


def _write_edit(edit: Edit, message: edit_pb2.Edit) -> None:
    require_one_name(edit, "module", "op")
    EDIT_KINDS.codec.write(edit, message)


def _read_edit(message: edit_pb2.Edit) -> Edit:
    refuse_no_name(message, "name a module or an operator")
    edit: Edit = EDIT_KINDS.codec.read(message)
    _refuse_position(edit, message)
    return edit


EDITS = several(Codec(_write_edit, _read_edit))


# Targets: a subclass and a message for each.


def _some(attribute: str, element: str) -> Callable[[Any], None]:
    """Returns a check for targets: raises ``TARGET_MISMATCH`` if the list ``attribute`` of a target is empty."""

    def check(target: Any) -> None:
        if not getattr(target, attribute):
            raise error(Reason.TARGET_MISMATCH, f"no {element}; send one for all, or one an example")

    return check


_TARGET = FieldRule(
    codec=Codec(
        lambda target, message: TARGETS.codec.write(target, message), lambda message: TARGETS.codec.read(message)
    )
)
"""The rule for a target inside of a target."""

_RULES = {
    "target": _TARGET,
    "other": _TARGET,
    "values": REQUIRED_TENSOR,
    "tensor": REQUIRED_TENSOR,
    "slices": FieldRule(codec=SLICES),
    "position": FieldRule(codec=_number(INT64)),
    "position_text": _POSITION["position_text"],
}

NEURON = record(Neuron, target_pb2.Neuron, _RULES)

TARGETS: OneOf[Target] = OneOf(
    Target,
    target_pb2.Target,
    "kind",
    "say which scalar",
    named={"sum": OutputSum, "norm": OutputNorm},
    rules=_RULES,
    checks={
        ClassIndex: _some("indices", "class index"),
        ClassLabel: _some("labels", "label"),
        MultiIndex: _some("indices", "position"),
        CrossEntropy: _some("labels", "label"),
        SequenceLogProbability: _some("texts", "text"),
    },
    default=PredictedClass,
)
