"""A span for each call, and one for each of its stages, for whatever collector ``OTEL_EXPORTER_OTLP_ENDPOINT`` names.

Needs the extra ``cutaway[traces]``.
"""

from __future__ import annotations

import os
import threading
import time

import grpc
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from cutaway.gateway.watched import Call
from cutaway.routes import SERVICE

_W3C = TraceContextTextMapPropagator()

_LAST_S = 1.0
"""How long the end of a server waits for a collector to take what is left: one that is well takes milliseconds, and
one that is dead must not be what a rollout waits for."""


class Traces:
    """Sends spans, a batch at a time, from a thread of its own. Sampling and all else is as ``OTEL_...`` variables say;
    the protocol is OTLP over gRPC."""

    def __init__(self) -> None:
        name = os.environ.get("OTEL_SERVICE_NAME", "cutaway")
        self._provider = TracerProvider(resource=Resource.create({"service.name": name}), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("cutaway")
        self._spans: dict[Call, tuple[trace.Span, int]] = {}

    def began(self, call: Call) -> None:
        """Begin the span, below the caller's; ``call`` belongs to this one from here on."""
        start = time.time_ns()
        span = self._tracer.start_span(
            f"{SERVICE}/{call.method}",
            _W3C.extract({"traceparent": call.traceparent}),
            trace.SpanKind.SERVER,
            {"rpc.system": "grpc", "rpc.service": SERVICE, "rpc.method": call.method, "client.address": call.peer},
            start_time=start,
        )
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, trace.set_span_in_context(span))
        call.traceparent = carrier["traceparent"]
        self._spans[call] = span, start

    def ended(self, call: Call) -> None:
        """End the span, and make those of its stages."""
        span, start = self._spans.pop(call)
        span.set_attributes(_facts(call))
        if call.code != "OK":
            span.set_status(trace.StatusCode.ERROR, call.reason)
        self._stages(call, trace.set_span_in_context(span), start)
        span.end(start + round(call.seconds * 1e9))

    def _stages(self, call: Call, parent: Context, start: int) -> None:
        """A reply tells how long its stages took, and not when they began: their spans are laid end to end."""
        for stage, milliseconds in call.seen.stages.items():
            end = start + round(milliseconds * 1e6)
            self._tracer.start_span(stage, parent, start_time=start).end(end)
            start = end

    def close(self) -> None:
        """Send what is left, as far as the collector takes it in a second."""
        # By itself it would wait as long as the exporter does: ten seconds, or what OTEL_EXPORTER_OTLP_TIMEOUT says.
        sending = threading.Thread(target=self._provider.shutdown, name="cutaway-last-spans", daemon=True)
        sending.start()
        sending.join(_LAST_S)


def _facts(call: Call) -> dict[str, str | int]:
    return {
        "rpc.grpc.status_code": grpc.StatusCode[call.code].value[0],
        "cutaway.request_id": call.request_id,
        "cutaway.model": call.model.model,
        "cutaway.version": call.model.version,
        "cutaway.reason": call.reason,
        "cutaway.request_bytes": call.request_bytes,
        "cutaway.reply_bytes": call.reply_bytes,
    }
