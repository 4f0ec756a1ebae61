"""Attribution requests and their typed messages. A method's message has the fields of its parameters, and what they
are called says how they travel: see `cutaway.wire.parts`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message

from cutaway.errors import at
from cutaway.requests import Attribution, Target, field_name
from cutaway.v1 import attribution_pb2 as pb
from cutaway.wire import noise, targets
from cutaway.wire.oneof import Codec, OneOf
from cutaway.wire.parts import PARTS
from cutaway.wire.repeated import each


def encode(request: Attribution) -> pb.AttributionRequest:
    """``request`` as a message."""
    message = pb.AttributionRequest(
        inputs=request.inputs, metrics=each("metrics", noise.encode_metric, request.metrics)
    )
    METHODS.encode(request, message)
    if request.target is not None:
        with at("target"):
            message.target.CopyFrom(targets.encode(request.target))
    if request.noise is not None:
        with at("noise_tunnel"):
            message.noise_tunnel.CopyFrom(noise.encode(request.noise))
    return message


def decode(message: pb.AttributionRequest) -> Attribution:
    """The same, backwards.

    Raises:
        InvalidArgument: with the field at fault.
    """
    return METHODS.decode(
        message,
        target=_decode_target(message),
        inputs=tuple(message.inputs),
        noise=noise.decode(message.noise_tunnel) if message.HasField("noise_tunnel") else None,
        metrics=tuple(each("metrics", noise.decode_metric, message.metrics)),
    )


def _decode_target(message: pb.AttributionRequest) -> Target | None:
    if not message.HasField("target"):
        return None
    with at("target"):
        return targets.decode(message.target)


def _kinds(base: type[Attribution]) -> Iterator[type[Attribution]]:
    """The methods that `cutaway.requests` has."""
    narrower = [kind for kind in base.__subclasses__() if kind.__module__.startswith("cutaway.requests.")]
    if not narrower:
        yield base
    for kind in narrower:
        yield from _kinds(kind)


def _codec(kind: type[Attribution]) -> Codec:
    field = field_name(kind)
    blank = getattr(pb.AttributionRequest(), field)
    names = [each.name for each in blank.DESCRIPTOR.fields]

    def fill(request: Any) -> Message:
        message: Message = type(blank)()
        for name in names:
            PARTS[name].encode(request, message)
        return message

    def read(message: Message) -> dict[str, Any]:
        return {key: value for name in names for key, value in PARTS[name].decode(message, kind).items()}

    return Codec(field, fill, read)


METHODS: OneOf[Attribution] = OneOf(
    "method", "name a method", {kind: _codec(kind) for kind in dict.fromkeys(_kinds(Attribution))}
)
