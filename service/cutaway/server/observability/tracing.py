"""OpenTelemetry spans of calls and their stages, sent to the collector at ``OTEL_EXPORTER_OTLP_ENDPOINT``.

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

from cutaway.client.transport import SERVICE
from cutaway.server.observability.call_watch import CallRecord

_W3C = TraceContextTextMapPropagator()

_SHUTDOWN_S = 1.0
"""Seconds that a stopping server waits for the collector, which takes milliseconds.

A dead collector must not delay a rollout.
"""


class Traces:
    """An observer that sends spans of calls by OTLP over gRPC, in batches from a background thread.

    ``OTEL_...`` variables set sampling and all other options.
    """

    def __init__(self) -> None:
        name = os.environ.get("OTEL_SERVICE_NAME", "cutaway")
        self._provider = TracerProvider(resource=Resource.create({"service.name": name}), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("cutaway")
        self._spans: dict[CallRecord, tuple[trace.Span, int]] = {}

    def call_started(self, call: CallRecord) -> None:
        """Starts the call's span below the caller's; `CallRecord.traceparent` becomes the new span."""
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

    def call_ended(self, call: CallRecord) -> None:
        """Ends the span, and adds those of its stages."""
        span, start = self._spans.pop(call)
        span.set_attributes(_attributes(call))
        if call.code != "OK":
            span.set_status(trace.StatusCode.ERROR, call.reason)
        self._stages(call, trace.set_span_in_context(span), start)
        span.end(start + round(call.seconds * 1e9))

    def _stages(self, call: CallRecord, parent: Context, start: int) -> None:
        """Adds the stages' spans end to end: a reply has the stages' durations, but not when they began."""
        for stage, milliseconds in call.summary.stages.items():
            end = start + round(milliseconds * 1e6)
            self._tracer.start_span(stage, parent, start_time=start).end(end)
            start = end

    def close(self) -> None:
        """Sends the remaining spans, as many as the collector accepts in a second."""
        # shutdown() itself waits as long as the exporter: ten seconds, or OTEL_EXPORTER_OTLP_TIMEOUT.
        sending = threading.Thread(target=self._provider.shutdown, name="cutaway-last-spans", daemon=True)
        sending.start()
        sending.join(_SHUTDOWN_S)


def _attributes(call: CallRecord) -> dict[str, str | int]:
    return {
        "rpc.grpc.status_code": grpc.StatusCode[call.code].value[0],
        "cutaway.request_id": call.request_id,
        "cutaway.model": call.model.model,
        "cutaway.version": call.model.version,
        "cutaway.reason": call.reason,
        "cutaway.request_bytes": call.request_bytes,
        "cutaway.reply_bytes": call.reply_bytes,
    }
