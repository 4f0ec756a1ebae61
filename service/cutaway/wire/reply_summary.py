"""What the gateway reads of a serialised reply: the time of each stage, and the verdicts of checks.

The bytes of tensors are skipped and nothing is copied. Protobuf would copy every field that the parsed message type
does not have: 30 ms for 64 MiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from cutaway.errors import CutawayError
from cutaway.results import Verdict
from cutaway.v1 import attribution_pb2, check_pb2, inspection_pb2, inspection_service_pb2
from cutaway.wire.chunks import read_fields
from cutaway.wire.enums import VERDICTS

_TIMINGS = inspection_pb2.InspectResponse.TIMINGS_FIELD_NUMBER
_ATTRIBUTIONS = inspection_pb2.InspectResponse.ATTRIBUTIONS_FIELD_NUMBER
_METHOD = attribution_pb2.Attribution.METHOD_FIELD_NUMBER
_CHECKS = attribution_pb2.Attribution.CHECKS_FIELD_NUMBER
_VERDICT = check_pb2.Check.VERDICT_FIELD_NUMBER
_PATH_TO_RESPONSE = (
    inspection_service_pb2.InspectStreamResponse.PIECE_FIELD_NUMBER,
    inspection_service_pb2.StreamPiece.HEADER_FIELD_NUMBER,
    inspection_service_pb2.StreamHeader.RESPONSE_FIELD_NUMBER,
)


class CheckOutcome(NamedTuple):
    """The outcome of one check: Captum's class name of the method, and the verdict."""

    method: str
    verdict: Verdict


class ReplySummary(NamedTuple):
    """What a reply says of its computation.

    Attributes:
        stages: the time of each stage that ran (``queue``, ``forward``, ...), in milliseconds.
        checks: the outcomes of checks, in the order of the reply.
    """

    stages: dict[str, float]
    checks: tuple[CheckOutcome, ...] = ()


def summarize(reply: bytes) -> ReplySummary:
    """Returns the summary of a serialised `cutaway.v1.InspectResponse`; an empty one if the bytes are none."""
    return _summarize([memoryview(reply)])


def summarize_opening(message: bytes) -> ReplySummary:
    """Returns the summary of a serialised `cutaway.v1.InspectStreamResponse` that has the header."""
    views: Iterable[memoryview] = [memoryview(message)]
    for number in _PATH_TO_RESPONSE:
        views = _values(views, number)
    return _summarize(views)


def _summarize(responses: Iterable[memoryview]) -> ReplySummary:
    timings: list[memoryview] = []  # several, each of some stages: see `timing_patch`
    checks: list[CheckOutcome] = []
    try:
        for response in responses:
            for number, value in read_fields(response):
                if number == _TIMINGS:
                    timings.append(value)
                elif number == _ATTRIBUTIONS:
                    checks += _outcomes(value)
        stages = inspection_pb2.Timings.FromString(b"".join(timings))
    except (CutawayError, DecodeError, IndexError, KeyError, TypeError, ValueError):
        return ReplySummary({})  # the caller finds out about a damaged reply; it is no reason to fail the call here
    return ReplySummary({field.name.removesuffix("_ms"): value for field, value in stages.ListFields()}, tuple(checks))


def _outcomes(attribution: memoryview) -> Iterator[CheckOutcome]:
    values = list(read_fields(attribution))
    method = next((str(value, "utf-8") for number, value in values if number == _METHOD), "")
    for number, value in values:
        if number == _CHECKS:
            yield CheckOutcome(method, VERDICTS.decode(dict(read_fields(value))[_VERDICT]))


def _values(views: Iterable[Any], number: int) -> Iterator[Any]:
    """Yields the values of the fields with ``number`` in serialised messages."""
    return (value for view in views for found, value in read_fields(view) if found == number)
