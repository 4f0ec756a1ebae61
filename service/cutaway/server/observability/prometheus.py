"""The Prometheus metrics of the gateway, and the HTTP endpoint of metrics, which batch jobs use too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, make_wsgi_app
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from cutaway.contract.results import ModelName, UnservedArchive
from cutaway.server.batching import Batcher
from cutaway.server.listening import listener, name_of
from cutaway.server.observability.call_watch import CallRecord


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Does nothing."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def get_request(self) -> tuple[Any, Any]:
        """Accepts a connection; whoever calls over a Unix socket has no address."""
        connection, address = super().get_request()
        return connection, address or ("unix", 0)


@contextmanager
def metrics_endpoint(
    registry: CollectorRegistry, address: str, settle: Callable[[], None] = lambda: None
) -> Iterator[str]:
    """Serves the metrics of ``registry`` over HTTP while the block runs.

    Args:
        registry: the metrics.
        address: ``HOST:PORT``, ``:PORT``, which is loopback, or ``unix:/PATH``; port 0 picks a free port.
        settle: called before the metrics are read, in a thread of its own: counts what has ended until then.

    Yields:
        The address, with the port that was picked.

    Raises:
        CutawayError: ``INVALID_VALUE`` if the address is malformed, ``BACKEND_UNAVAILABLE`` if it is in use.
    """
    address = f"127.0.0.1{address}" if address.startswith(":") else address
    with listener(address, "metrics_address") as bound, _Server(("", 0), _Handler, bind_and_activate=False) as server:
        server.socket.close()
        server.socket = bound
        server.server_name, server.server_port = "", bound.getsockname()[1]
        server.setup_environ()
        page = make_wsgi_app(registry)

        def settled(environment: Any, start: Any) -> Any:
            settle()
            return page(environment, start)

        server.set_app(settled)
        thread = Thread(target=server.serve_forever, name="cutaway-metrics", daemon=True)
        thread.start()
        try:
            yield name_of(address, server.server_port)
        finally:
            server.shutdown()
            thread.join()


_MODEL = ("model", "version")
_CALL = ("method", *_MODEL)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_STAGES = "Duration of stages of answered requests: queue, decode, forward, backward, attribution, check, encode."
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, math.inf)


class Metrics:
    """The metrics of one gateway, in their own registry: several gateways in one process do not mix.

    Labels hold only what the server knows: served models, reasons of the contract. Callers cannot create series.

    Args:
        batchers: the request queues of the models, read when Prometheus scrapes.
    """

    def __init__(self, batchers: Mapping[ModelName, Batcher[Any]]) -> None:
        self.registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        seconds = partial(Histogram, buckets=_SECONDS, registry=registry)
        what = "Calls that ended; the model is empty if the call names none that is served."
        self._calls = counter("cutaway_calls_total", what, (*_CALL, "code", "reason"))
        self._seconds = seconds("cutaway_call_seconds", "Duration of calls.", _CALL)
        self._stages = seconds("cutaway_stage_seconds", _STAGES, (*_MODEL, "stage"))
        labels = (*_MODEL, "attribution", "verdict")
        self._verdicts = counter("cutaway_verdicts_total", "Verdicts of the checks of attributions.", labels)
        self._in_flight = gauge("cutaway_calls_in_flight", "Running calls.", ("method",))
        self._received = counter("cutaway_request_bytes_total", "Bytes of requests.", _CALL)
        self._sent = counter("cutaway_reply_bytes_total", "Bytes of replies.", _CALL)
        self._serving = gauge("cutaway_model_serving", "1 if the model accepts calls, else 0.", _MODEL)
        what = (
            "1 for an archive of the model store that is not served: LOADING, NOT_WHOLE (half copied, damaged), FAILED."
        )
        self._unserved = gauge("cutaway_archive_unserved", what, ("archive", "state"))
        self._set: dict[Gauge, set[tuple[str, ...]]] = {self._serving: set(), self._unserved: set()}
        # Prometheus's own `labels` takes a lock, and most of a call's time here; series of calls are never removed.
        self._of: Callable[..., Any] = cache(lambda metric, *labels: metric.labels(*labels))
        registry.register(_Queues(batchers))
        ProcessCollector(registry=registry)

    def call_started(self, call: CallRecord) -> None:
        """Counts ``call`` as running."""
        self._of(self._in_flight, call.method).inc()

    def call_ended(self, call: CallRecord) -> None:
        """Counts ``call`` as ended."""
        model = (call.model.model, call.model.version)
        labels = (call.method, *model)
        self._of(self._in_flight, call.method).dec()
        self._of(self._calls, *labels, call.code, call.reason).inc()
        self._of(self._seconds, *labels).observe(call.seconds)
        self._of(self._received, *labels).inc(call.request_bytes)
        self._of(self._sent, *labels).inc(call.reply_bytes)
        for stage, milliseconds in call.summary.stages.items():
            self._of(self._stages, *model, stage).observe(milliseconds / 1000)
        for check in call.summary.checks:
            self._of(self._verdicts, *model, check.method, check.verdict).inc()

    def set_serving(self, models: Mapping[ModelName, bool], unserved: Iterable[UnservedArchive]) -> None:
        """Sets which models there are and whether each accepts calls, and which archives are not served."""
        series: dict[Gauge, dict[tuple[str, ...], bool]] = {
            self._serving: {(name.model, name.version): serving for name, serving in models.items()},
            self._unserved: {(item.archive, item.state.value): True for item in unserved},
        }
        for gauge, values in series.items():
            for labels, value in values.items():
                gauge.labels(*labels).set(value)
            for labels in self._set[gauge] - values.keys():
                gauge.remove(*labels)
            self._set[gauge] = {*values}


class _Queues(Collector):
    """A collector that reads the request queues when Prometheus scrapes."""

    def __init__(self, batchers: Mapping[ModelName, Batcher[Any]]) -> None:
        self._batchers = batchers

    def collect(self) -> Iterator[GaugeMetricFamily | HistogramMetricFamily]:
        """Yields the lengths of the queues, and the sizes of the batches so far."""
        waiting = GaugeMetricFamily("cutaway_waiting_calls", "Calls that wait in the model's queue.", labels=_MODEL)
        sizes = HistogramMetricFamily("cutaway_batch_size", "Calls in a batch.", labels=_MODEL)
        for name, batcher in list(self._batchers.items()):
            labels, counts = (name.model, name.version), dict(batcher.batch_sizes)
            waiting.add_metric(labels, batcher.queue_length)
            sizes.add_metric(labels, _buckets(counts), sum(size * count for size, count in counts.items()))
        yield waiting
        yield sizes


def _buckets(counts: Mapping[int, int]) -> list[tuple[str, float]]:
    return [
        ("+Inf" if most == math.inf else str(float(most)), sum(count for size, count in counts.items() if size <= most))
        for most in _BATCH_SIZES
    ]
