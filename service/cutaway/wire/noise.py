"""Noise tunnels and metrics."""

from __future__ import annotations

import math
from typing import Any

from cutaway.errors import Reason, error
from cutaway.requests import Infidelity, Metric, NoiseTunnel, SensitivityMax
from cutaway.v1 import attribution_pb2 as pb
from cutaway.wire.enums import COMBINATIONS
from cutaway.wire.numbers import UINT32, at_least_one, real, whole
from cutaway.wire.oneof import Codec, OneOf


def encode(request: NoiseTunnel) -> pb.NoiseTunnel:
    """``request`` as a message."""
    return pb.NoiseTunnel(
        combination=COMBINATIONS.to_wire(request.combination, "combination"),
        n_samples=_count(request.n_samples),
        stdev=real("stdev", request.stdev),
    )


def decode(message: pb.NoiseTunnel) -> NoiseTunnel:
    """The same, backwards.

    Raises:
        InvalidArgument: with the field at fault.
    """
    given: dict[str, Any] = {"n_samples": message.n_samples} if message.n_samples else {}
    if message.HasField("stdev"):
        if not 0 <= message.stdev < math.inf:
            raise error(Reason.INVALID_VALUE, f"{message.stdev}; a finite number from 0 up", "noise_tunnel.stdev")
        given["stdev"] = message.stdev
    return NoiseTunnel(COMBINATIONS.to_plain(message.combination, "noise_tunnel.combination"), **given)


def _count(given: Any) -> int:
    return at_least_one("n_samples", whole("n_samples", given, UINT32))


def encode_metric(metric: Metric) -> pb.MetricRequest:
    """``metric`` as a message."""
    message = pb.MetricRequest()
    METRICS.encode(metric, message)
    return message


def decode_metric(message: pb.MetricRequest) -> Metric:
    """The same, backwards.

    Raises:
        InvalidArgument: with the field at fault.
    """
    return METRICS.decode(message)


def _judged(message: Any, spread: str) -> dict[str, Any]:
    found: dict[str, Any] = {"n_samples": message.n_samples} if message.n_samples else {}
    if message.HasField(spread):
        found[spread] = getattr(message, spread)
        if not 0 < found[spread] < math.inf:
            raise error(Reason.INVALID_VALUE, f"{found[spread]}; a finite number above 0", spread)
    return found


METRICS: OneOf[Metric] = OneOf(
    "metric",
    "say which metric: infidelity or sensitivity_max",
    {
        Infidelity: Codec(
            "infidelity",
            lambda metric: pb.Infidelity(n_samples=_count(metric.n_samples), stdev=real("stdev", metric.stdev)),
            lambda message: _judged(message, "stdev"),
        ),
        SensitivityMax: Codec(
            "sensitivity_max",
            lambda metric: pb.SensitivityMax(n_samples=_count(metric.n_samples), radius=real("radius", metric.radius)),
            lambda message: _judged(message, "radius"),
        ),
    },
)
