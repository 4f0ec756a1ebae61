"""Looks on: what health says of each model, and how much memory there is, several times a second."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.mixed.callers import Answered
from tests.support.processes import resident_bytes
from tests.support.serving import Server

EVERY_S = 0.2

LATE_S = 10.0
"""Until health says that a model does not serve, after the latest deadline of its calls; and after it serves again."""

AT_ONCE_S = 0.5
"""Health may be so much behind. No worker of TorchServe starts within three times as long."""


class Sample(NamedTuple):
    """Whether health said that a model serves; ``at`` is in monotonic seconds."""

    at: float
    model: str
    serving: bool


class Observer:
    """Samples the health of ``models``, and the most memory of all processes together."""

    def __init__(self, server: Server, models: Sequence[str] = (), every_s: float = EVERY_S) -> None:
        self.samples: list[Sample] = []
        self.most_bytes = 0
        self._server, self._models, self._every_s = server, models, every_s

    def look(self, over: threading.Event) -> None:
        """Look until it is over."""
        own_connection = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        with grpc.insecure_channel(self._server.address, options=own_connection) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            while not over.wait(self._every_s):
                for model in self._models:
                    with suppress(grpc.RpcError):  # no new connection while there are too many
                        reply = stub.Check(health_pb2.HealthCheckRequest(service=model), timeout=5.0)
                        serving = reply.status == health_pb2.HealthCheckResponse.SERVING
                        self.samples.append(Sample(time.monotonic(), model, serving))
                with suppress(psutil.Error):  # it is being restarted
                    self.most_bytes = max(self.most_bytes, resident_bytes(self._server))

    def untrue(self, answered: Mapping[str, Sequence[Answered]], deadline_s: float) -> list[Sample]:
        """Returns the samples that were not true: serving, but nothing was answered for as long as a call may wait and
        a fault be noticed; or not serving, though a call was answered half a second to a second before, and another
        that began afterwards within half a second. A worker that refuses new calls answers those that it has."""
        times = {model: sorted(call.at for call in calls) for model, calls in answered.items()}

        def between(sample: Sample, before_s: float, after_s: float) -> bool:
            each = times.get(sample.model, [])
            return bisect_right(each, sample.at + after_s) > bisect_left(each, sample.at - before_s)

        def served_at_once(sample: Sample) -> bool:
            until = sample.at + AT_ONCE_S
            return any(sample.at <= call.asked_at and call.at <= until for call in answered.get(sample.model, ()))

        reach_s = deadline_s + LATE_S
        return [
            sample
            for sample in self.samples
            if (sample.serving and not between(sample, reach_s, reach_s))
            or (not sample.serving and between(sample, 2 * AT_ONCE_S, -AT_ONCE_S) and served_at_once(sample))
        ]
