"""A collector of traces, as far as spans are sent to it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """All that was sent."""

    def __init__(self) -> None:
        self.spans: list[trace_pb2.Span] = []
        self.services: set[str] = set()

    def Export(self, request: Any, context: Any) -> Any:  # the name is the protocol's
        for each in request.resource_spans:
            self.services |= {
                item.value.string_value for item in each.resource.attributes if item.key == "service.name"
            }
            self.spans += [span for scope in each.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


@contextmanager
def collecting(patch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that the environment names."""
    server = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector := Collector(), server)
    patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    server.start()
    try:
        yield collector
    finally:
        server.stop(0).wait()


def facts(span: trace_pb2.Span) -> dict[str, Any]:
    return {item.key: item.value.string_value or item.value.int_value for item in span.attributes}
