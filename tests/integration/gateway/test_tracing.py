"""A trace goes through to the worker: what a model's own code traces lies below the call that asked for it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.proto.trace.v1 import trace_pb2
from torch import Tensor, nn

import cutaway as ca
from cutaway.client.transport import SERVICE
from cutaway.contract.requests import InspectRequest
from cutaway.contract.wire import requests as wire_requests
from cutaway.gateway import serve
from cutaway.v1 import inspection_service_pb2
from tests.conftest import ADAPTERS
from tests.support.serving import package, serving
from tests.support.trace_collector import collecting
from tests.support.worker_calls import read, row, worker

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
X = np.ones((2, 3), np.float32)


class Noting(nn.Module):
    """Notes which span each of its passes belongs to."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.below: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        now = trace.get_current_span().get_span_context()
        self.below.append(f"{now.trace_id:032x}-{now.span_id:016x}")
        output: Tensor = self.linear(x)
        return output


def ask(channel: grpc.Channel, traceparent: str, *, stream: bool = False) -> None:
    """Ask for a prediction, a gradient and an explanation, within the span ``traceparent``; within none where empty."""
    message = wire_requests.encode(InspectRequest("net", {"x": X}, input_gradients=(), attributions=(ca.Saliency(),)))
    metadata = (("traceparent", traceparent),) if traceparent else ()
    if stream:
        data = inspection_service_pb2.InspectStreamRequest(request=message).SerializeToString()
        send_stream: Any = channel.unary_stream(f"/{SERVICE}/InspectStream")
        list(send_stream(data, metadata=metadata))
    else:
        send: Any = channel.unary_unary(f"/{SERVICE}/Inspect")
        send(message.SerializeToString(), metadata=metadata)


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_runs_inside_its_callers_span(stream: bool) -> None:
    """Whoever calls from within a span finds the model's passes below it, and a call from none leaves none behind."""
    model = Noting()
    with serve({"net": model}) as server, grpc.insecure_channel(server.address) as channel:
        ask(channel, "")
        model.below.clear()
        ask(channel, f"00-{TRACE}-{SPAN}-01", stream=stream)
        assert set(model.below) == {f"{TRACE}-{SPAN}"}
        model.below.clear()
        ask(channel, "", stream=stream)
        assert set(model.below) == {f"{0:032x}-{0:016x}"}


def test_what_is_no_span_is_nobodys() -> None:
    """What a caller sends in place of a span, in whatever shape, neither fails the call nor reaches the model."""
    model = Noting()
    with serve({"net": model}) as server, grpc.insecure_channel(server.address) as channel:
        for word in (f"00-{TRACE}-{SPAN}", f"01-{TRACE}-{SPAN}-01", "00-" + "0" * 32 + f"-{SPAN}-01", "x" * 4000):
            ask(channel, word)
    direct = worker(model)
    for word in ("", "\xff" * 60, "00-", "\0" * (1 << 20)):
        assert read(*direct.answer([row({"x": X})._replace(traceparent=word)])).predictions
    assert set(model.below) == {f"{0:032x}-{0:016x}"}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["processes", "torchserve"])
def test_one_trace_from_the_caller_into_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """With workers as processes: the call is a span below its caller's, its stages are below the call, and so is what
    the model traces of itself in the worker's process, in one trace with the right parents."""
    package(tmp_path / "store", "net", f"{ADAPTERS / 'traced_adapter.py'}:Traced")
    options = (tmp_path / "store", tmp_path / "logs", f"--engine={engine}")
    with collecting(monkeypatch) as collector, serving(*options) as server:
        with grpc.insecure_channel(server.address) as channel:
            for stream in (False, True):
                ask(channel, f"00-{TRACE}-{SPAN}-01", stream=stream)
        assert server.stop() == 0
    ours = [span for span in collector.spans if span.trace_id.hex() == TRACE]
    calls = [span for span in ours if span.kind == trace_pb2.Span.SPAN_KIND_SERVER]
    assert sorted(span.name for span in calls) == [f"{SERVICE}/Inspect", f"{SERVICE}/InspectStream"]
    assert {span.parent_span_id.hex() for span in calls} == {SPAN}
    for call in calls:
        below = [span for span in ours if span.parent_span_id == call.span_id]
        stages = {"queue", "decode", "forward", "backward", "attribution", "check", "encode"}
        assert {span.name for span in below} - {"proof"} == {*stages, "pass"}
        passes = [span for span in below if span.name == "pass"]
        assert len(passes) >= 2  # the prediction, and the explanation
        begin, end = call.start_time_unix_nano, call.end_time_unix_nano
        assert all(begin <= span.start_time_unix_nano <= span.end_time_unix_nano <= end for span in passes)
    assert len(ours) == len(calls) + sum(span.parent_span_id in {call.span_id for call in calls} for span in ours)


def test_calls_that_share_a_pass_share_its_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """The passes of a shared turn lie below one call that is sampled, and not below one that is not."""
    sampled, unsampled = f"{TRACE}-{SPAN}", f"{TRACE}-{'1' * 16}"
    model = Noting()
    with serve({"net": model}) as server, grpc.insecure_channel(server.address) as channel:
        ask(channel, "")
        model.below.clear()
        with ThreadPoolExecutor(16) as pool:
            flags = ["01", "00"] * 8
            spans = [sampled, unsampled] * 8
            asked = [pool.submit(ask, channel, f"00-{span}-{flag}") for span, flag in zip(spans, flags)]
            for each in asked:
                each.result()
    assert set(model.below) <= {sampled, unsampled}
    assert sampled in model.below


@contextmanager
def silent() -> Iterator[str]:
    """Where something listens and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("collector", ["silent", "gone"])
@pytest.mark.slow
def test_a_dead_collector_does_not_hold_up_the_end(
    collector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody takes the spans that are left a server ends all the same, though the exporter would wait for an
    hour."""
    package(tmp_path / "store", "net", f"{ADAPTERS / 'tiny_adapter.py'}:Tiny")
    with silent() as address:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address if collector == "silent" else "http://127.0.0.1:9")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
        with serving(tmp_path / "store", tmp_path / "logs", "--engine=embedded") as server:
            with ca.Client(server.address) as client:
                client.list_models()
            assert server.stop() == 0
