"""An adapter whose owner traces what the model does, to the collector that the environment names."""

from __future__ import annotations

import torch
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from torch import Tensor, nn

from cutaway.adapters import Adapter


class Net(nn.Module):
    """A linear layer, with a span around each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
        self._tracer = provider.get_tracer("net")

    def forward(self, x: Tensor) -> Tensor:
        with self._tracer.start_as_current_span("pass"):
            output: Tensor = self.linear(x)
            return output


class Traced(Adapter):
    """Serves it."""

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return Net()
