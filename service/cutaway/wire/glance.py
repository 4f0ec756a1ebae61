"""What the front door sees of a reply as it passes: how long each stage took, and what the checks found.

Tensors are stepped over and nothing of them is copied. Protobuf would do neither: what a message has no field for it
copies, 30 ms for 64 MiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from cutaway.errors import CutawayError
from cutaway.results import Verdict
from cutaway.v1 import attribution_pb2, check_pb2, inspection_pb2, inspection_service_pb2
from cutaway.wire.enums import VERDICTS
from cutaway.wire.pieces import fields

_TIMINGS = inspection_pb2.InspectResponse.TIMINGS_FIELD_NUMBER
_ATTRIBUTIONS = inspection_pb2.InspectResponse.ATTRIBUTIONS_FIELD_NUMBER
_METHOD = attribution_pb2.Attribution.METHOD_FIELD_NUMBER
_CHECKS = attribution_pb2.Attribution.CHECKS_FIELD_NUMBER
_VERDICT = check_pb2.Check.VERDICT_FIELD_NUMBER
_TO_RESPONSE = (
    inspection_service_pb2.InspectStreamResponse.PIECE_FIELD_NUMBER,
    inspection_service_pb2.StreamPiece.HEADER_FIELD_NUMBER,
    inspection_service_pb2.StreamHeader.RESPONSE_FIELD_NUMBER,
)


class Found(NamedTuple):
    """One check's outcome: the attribution's method, by Captum's class name, and the verdict."""

    method: str
    verdict: Verdict


class Glance(NamedTuple):
    """What there is to see.

    Attributes:
        stages: the stages that ran (``queue``, ``forward``, ...) and how long each took, in milliseconds.
        checks: outcomes, in the order of the reply.
    """

    stages: dict[str, float]
    checks: tuple[Found, ...] = ()


def glance(reply: bytes) -> Glance:
    """What a serialised `cutaway.v1.InspectResponse` shows; nothing, where the bytes are none."""
    return _readable([memoryview(reply)])


def glance_at_opening(message: bytes) -> Glance:
    """The same for a serialised `cutaway.v1.InspectStreamResponse` with the header."""
    views: Iterable[memoryview] = [memoryview(message)]
    for number in _TO_RESPONSE:
        views = _inside(views, number)
    return _readable(views)


def _readable(responses: Iterable[memoryview]) -> Glance:
    """What a worker got wrong is its caller's to find; here it must not cost the call."""
    try:
        return _seen(responses)
    except (CutawayError, DecodeError, IndexError, KeyError, TypeError, ValueError):
        return Glance({})


def _seen(responses: Iterable[memoryview]) -> Glance:
    timings: list[memoryview] = []  # several, each of some stages: protobuf merges what is concatenated
    checks: list[Found] = []
    for response in responses:
        for number, value in fields(response):
            if number == _TIMINGS:
                timings.append(value)
            elif number == _ATTRIBUTIONS:
                checks += _found(value)
    took = inspection_pb2.Timings.FromString(b"".join(timings))
    return Glance({field.name.removesuffix("_ms"): value for field, value in took.ListFields()}, tuple(checks))


def _found(attribution: memoryview) -> Iterator[Found]:
    method, checks = "", []
    for number, value in fields(attribution):
        if number == _METHOD:
            method = str(value, "utf-8")
        elif number == _CHECKS:
            checks.append(dict(fields(value))[_VERDICT])
    for verdict in checks:
        yield Found(method, VERDICTS.to_plain(verdict))


def _inside(views: Iterable[Any], number: int) -> Iterator[Any]:
    for view in views:
        for found, value in fields(view):
            if found == number:
                yield value
