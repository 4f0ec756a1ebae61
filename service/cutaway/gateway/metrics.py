"""What Prometheus reads of a front door, and the port that it reads it from."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, start_http_server
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from cutaway.errors import Reason, error
from cutaway.gateway.turns import Turns
from cutaway.gateway.watched import Call
from cutaway.results import ModelName

_MODEL = ("model", "version")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_CALLS = (1, 2, 4, 8, 16, 32, 64)
_WAITING = ("cutaway_waiting_calls", "Calls that wait for the model, not counting those that it is answering.")
_TURNS = ("cutaway_turn_calls", "Calls that a model was asked at once.")


class Metrics:
    """The numbers of one front door, in a registry of its own: several in one process do not meet.

    A label holds only what the server itself knows: models that are served, reasons of the contract. Callers cannot
    make series.

    Args:
        turns: the queues in front of the models, read when Prometheus reads.
    """

    def __init__(self, turns: Mapping[ModelName, Turns]) -> None:
        self.registry = registry = CollectorRegistry()
        called = ("method", *_MODEL)
        self._calls = Counter(
            "cutaway_calls_total",
            "Calls that ended. No model where none was asked, or none that is served.",
            (*called, "code", "reason"),
            registry=registry,
        )
        self._seconds = Histogram(
            "cutaway_call_seconds", "From a call to its answer.", called, buckets=_SECONDS, registry=registry
        )
        self._stages = Histogram(
            "cutaway_stage_seconds",
            "Stages of questions that were answered.",
            (*_MODEL, "stage"),
            buckets=_SECONDS,
            registry=registry,
        )
        self._verdicts = Counter(
            "cutaway_verdicts_total",
            "What checks of attributions found.",
            (*_MODEL, "attribution", "verdict"),
            registry=registry,
        )
        self._in_flight = Gauge("cutaway_calls_in_flight", "Calls under way.", ("method",), registry=registry)
        self._received = Counter("cutaway_request_bytes_total", "Bytes of requests.", called, registry=registry)
        self._sent = Counter("cutaway_reply_bytes_total", "Bytes of replies.", called, registry=registry)
        self._serving = Gauge(
            "cutaway_model_serving", "1 where a model can be asked, else 0.", _MODEL, registry=registry
        )
        registry.register(_Queues(turns))
        ProcessCollector(registry=registry)

    def began(self, call: Call) -> None:
        """``call`` has come."""
        self._in_flight.labels(call.method).inc()

    def ended(self, call: Call) -> None:
        """Count ``call``."""
        model = (call.model.model, call.model.version)
        called = (call.method, *model)
        self._in_flight.labels(call.method).dec()
        self._calls.labels(*called, call.code, call.reason).inc()
        self._seconds.labels(*called).observe(call.seconds)
        self._received.labels(*called).inc(call.request_bytes)
        self._sent.labels(*called).inc(call.reply_bytes)
        for stage, milliseconds in call.seen.stages.items():
            self._stages.labels(*model, stage).observe(milliseconds / 1000)
        for found in call.seen.checks:
            self._verdicts.labels(*model, found.method, found.verdict).inc()

    def serving(self, name: ModelName, state: bool) -> None:
        """Say whether model ``name`` can be asked."""
        self._serving.labels(name.model, name.version).set(state)


class _Queues(Collector):
    """The queues in front of the models, as they are when somebody looks."""

    def __init__(self, turns: Mapping[ModelName, Turns]) -> None:
        self._turns = turns

    def collect(self) -> Iterator[GaugeMetricFamily | HistogramMetricFamily]:
        """How long they are, and how large turns have been."""
        waiting = GaugeMetricFamily(*_WAITING, labels=_MODEL)
        sizes = HistogramMetricFamily(*_TURNS, labels=_MODEL)
        for name, turns in list(self._turns.items()):
            counts = dict(turns.sizes)
            waiting.add_metric((name.model, name.version), turns.waiting)
            sizes.add_metric(
                (name.model, name.version), _buckets(counts), sum(size * count for size, count in counts.items())
            )
        yield waiting
        yield sizes


def _buckets(counts: Mapping[int, int]) -> list[tuple[str, float]]:
    return [
        ("+Inf" if most == math.inf else str(float(most)), sum(count for size, count in counts.items() if size <= most))
        for most in (*_CALLS, math.inf)
    ]


class Port:
    """Metrics over HTTP, for as long as it is open.

    Args:
        metrics: what can be read.
        address: ``HOST:PORT``; port 0 picks a free one.

    Attributes:
        address: the same, with the port that was picked.

    Raises:
        CutawayError: the address cannot be had.
    """

    def __init__(self, metrics: Metrics, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._server: WSGIServer
        self._thread: threading.Thread
        try:
            self._server, self._thread = start_http_server(int(port), host.strip("[]"), metrics.registry)
        except (OSError, OverflowError, ValueError) as failure:
            raise error(Reason.BACKEND_UNAVAILABLE, f"metrics cannot be read at {address}: {failure}") from None
        self.address = f"{host}:{self._server.server_port}"

    def close(self) -> None:
        """Let go of the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
