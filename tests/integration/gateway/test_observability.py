"""A gateway tells what it does: metrics, a log, traces, health. Never a tensor, never a token."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2
from torch import Tensor, nn

import cutaway as ca
from cutaway.client.transport import SERVICE
from cutaway.contract.requests import InspectRequest
from cutaway.contract.wire import requests as wire_requests
from cutaway.gateway import serve
from cutaway.server.backends.backend import Backend
from cutaway.server.batching import Answers, Batcher
from cutaway.server.lifecycle.gateway_server import GatewayServer
from cutaway.server.lifecycle.in_process import LocalWorkers
from cutaway.server.model_store import Catalog
from cutaway.server.settings import Settings
from cutaway.server.worker.worker import Worker
from cutaway.v1 import inspection_pb2, inspection_service_pb2, worker_pb2
from tests.support.broken_captum import spoiled
from tests.support.prometheus import named, read, scraped, waiting_calls
from tests.support.serving import package, serving
from tests.support.small_models import Images
from tests.support.trace_collector import collecting, facts
from tests.support.turns import running
from tests.support.waiting import PATIENCE_S, until

IMAGE = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)
READ = Settings(metrics_address="127.0.0.1:0", grace_s=5)
DEPLOY = Path(__file__).parents[3] / "deploy"


def payload(model: str = "net") -> bytes:
    return wire_requests.encode(InspectRequest(model, {"image": IMAGE})).SerializeToString()


def called(address: str, method: str, data: bytes, **metadata: str) -> tuple[grpc.StatusCode, dict[str, Any]]:
    """Make a call by hand; its status and trailing metadata."""
    with grpc.insecure_channel(address) as channel:
        sent = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
        ask: Any = channel.unary_unary(f"/{SERVICE}/{method}")
        call = ask.future(data, metadata=sent)
        return call.code(), {item[0]: item[1] for item in call.trailing_metadata()}


def test_every_call_is_counted_once() -> None:
    """Answered, answered in pieces, explained, explained wrongly, refused: what is read is what was done, to the
    byte."""
    with serve({"net": Images()}, settings=READ) as server, ca.Client(server.address) as client:
        client.inspect("net", {"image": IMAGE}, captures=["conv1"], input_gradients=True)
        client.inspect("net", {"image": IMAGE}, attributions=[ca.Saliency(), ca.IntegratedGradients()])
        client.inspect("net", {"image": IMAGE}, captures=["**"], attributions=[ca.Saliency()], stream=True)
        for stream in (False, True):
            with spoiled(ca.Saliency, values=lambda values: values * 2):
                client.inspect("net", {"image": IMAGE}, attributions=[ca.Saliency()], stream=stream)
        client.get_model("net")
        client.list_models()
        for model, inputs in (("nets", {"image": IMAGE}), ("net", {"picture": IMAGE})):
            with pytest.raises(ca.CutawayError):
                client.inspect(model, inputs)
        until(lambda: read(server.metrics_address, "cutaway_calls_in_flight", method="Inspect") == 0)
        samples = scraped(server.metrics_address)

    assert named(samples, "cutaway_calls_total", "method", "model", "version", "code", "reason") == {
        ("Inspect", "net", "1.0", "OK", ""): 3,
        ("InspectStream", "net", "1.0", "OK", ""): 2,
        ("GetModel", "net", "1.0", "OK", ""): 1,
        ("ListModels", "", "", "OK", ""): 1,
        ("Inspect", "", "", "NOT_FOUND", "MODEL_NOT_FOUND"): 1,
        ("Inspect", "net", "1.0", "INVALID_ARGUMENT", "INPUT_UNKNOWN"): 1,
    }
    verdicts = named(samples, "cutaway_verdicts_total", "attribution", "verdict")
    assert verdicts[("Saliency", "AGREES")] == 2
    assert verdicts[("Saliency", "DISAGREES")] == 2
    assert verdicts[("IntegratedGradients", "AGREES")] >= 1
    assert {attribution for attribution, _ in verdicts} == {"Saliency", "IntegratedGradients"}
    stages = named(samples, "cutaway_stage_seconds_count", "stage")
    assert stages.pop(("proof",), 0) <= 5  # those that found tests of the model to make
    assert stages == {("queue",): 5, ("decode",): 5, ("forward",): 5, ("encode",): 5} | {
        (stage,): count for stage, count in (("backward", 1), ("attribution", 4), ("check", 4))
    }
    assert named(samples, "cutaway_call_seconds_count", "method", "model")[("InspectStream", "net")] == 2
    assert named(samples, "cutaway_model_serving", "model", "version") == {("net", "1.0"): 1}


def test_bytes_are_counted_as_they_travel() -> None:
    """Both ways, of replies in one message and in pieces."""
    with serve({"net": Images()}, settings=READ) as server, grpc.insecure_channel(server.address) as channel:
        ask: Any = channel.unary_unary(f"/{SERVICE}/Inspect")
        ask_stream: Any = channel.unary_stream(f"/{SERVICE}/InspectStream")
        reply = ask(payload())
        question = inspection_pb2.InspectRequest.FromString(payload())
        asked = inspection_service_pb2.InspectStreamRequest(request=question).SerializeToString()
        pieces = list(ask_stream(asked))
        samples = scraped(server.metrics_address)
    assert named(samples, "cutaway_request_bytes_total", "method") == {
        ("Inspect",): len(payload()),
        ("InspectStream",): len(asked),
    }
    assert named(samples, "cutaway_reply_bytes_total", "method") == {
        ("Inspect",): len(reply),
        ("InspectStream",): sum(map(len, pieces)),
    }
    assert len(pieces) > 2


def test_callers_make_no_series() -> None:
    """Names of models, versions, methods and calls that a caller makes up leave no label behind."""
    with serve({"net": Images()}, settings=READ) as server:
        for index in range(20):
            called(server.address, "Inspect", payload(f"m{index}"), x_request_id=f"r{index}")
            called(server.address, "Inspect", payload(f"net/versions/{index}"))
            called(server.address, f"Inspect{index}", payload())
            called(server.address, "GetModel", b"\xff\xff")
        until(lambda: read(server.metrics_address, "cutaway_calls_in_flight", method="GetModel") == 0)
        samples = scraped(server.metrics_address)
    assert named(samples, "cutaway_calls_total", "method", "model", "version", "code", "reason") == {
        ("Inspect", "", "", "NOT_FOUND", "MODEL_NOT_FOUND"): 20,
        ("Inspect", "", "", "NOT_FOUND", "VERSION_NOT_FOUND"): 20,
        ("GetModel", "", "", "INVALID_ARGUMENT", "MALFORMED_REQUEST"): 20,
    }


class Gate(nn.Module):
    """Waits in its forward until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.open = threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        """``x``, late."""
        self.entered.set()
        self.open.wait(PATIENCE_S)
        return x


class Large(nn.Module):
    """64 MiB from a row."""

    def forward(self, x: Tensor) -> Tensor:
        """Zeros."""
        return torch.zeros(len(x), 1 << 24)


def test_a_queue_is_seen_while_it_stands_and_turns_when_they_have_been() -> None:
    """Four calls, three of them waiting: the gauge says three; afterwards, turns of one and of three calls."""
    gate = Gate()
    x = np.ones((1, 2), np.float32)
    with serve({"gate": gate}, settings=READ) as server, ca.Client(server.address) as client:
        where = server.metrics_address
        with ThreadPoolExecutor(4) as callers:
            first = callers.submit(client.inspect, "gate", {"x": x})
            gate.entered.wait(PATIENCE_S)
            others = [callers.submit(client.inspect, "gate", {"x": x}) for _ in range(3)]
            until(lambda: waiting_calls(where, "gate") == 3)
            assert read(where, "cutaway_calls_in_flight", method="Inspect") == 4
            gate.open.set()
            wait([first, *others])
        samples = scraped(where)
    turns = named(samples, "cutaway_batch_size_bucket", "le")
    assert (turns[("1.0",)], turns[("2.0",)], turns[("4.0",)], turns[("+Inf",)]) == (1, 1, 2, 2)
    assert named(samples, "cutaway_batch_size_sum", "model") == {("gate",): 4}
    assert not named(samples, "cutaway_waiting_calls", "model")
    assert not named(samples, "cutaway_calls_in_flight", "method")


def test_a_queue_is_counted_while_it_changes() -> None:
    """Whoever reads metrics does so from a thread of its own, and gets a number whatever calls do meanwhile."""

    async def answer(calls: Sequence[worker_pb2.WorkerCall], replied: Answers[bytes]) -> None:
        await asyncio.sleep(0)
        for position in range(len(calls)):
            replied(position, b"x")

    async def ask(counted: list[int]) -> None:
        turns: Batcher[bytes] = Batcher(
            running(answer), workers=lambda: 1, sends_ahead=True, max_calls=3, max_bytes=100, max_pending=100
        )
        ended = threading.Event()

        def count() -> None:
            while not ended.is_set():
                counted.append(turns.queue_length)

        counting = asyncio.ensure_future(asyncio.to_thread(count))
        for _ in range(50):
            await asyncio.gather(*(turns.call(worker_pb2.WorkerCall(), 1, 30) for _ in range(100)))
        ended.set()
        await counting
        assert turns.queue_length == 0

    counted: list[int] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        asyncio.run(ask(counted))
    finally:
        sys.setswitchinterval(interval)
    assert max(counted) <= 100


def test_calls_that_nobody_waits_for_end_as_such() -> None:
    """A deadline that passed, a caller that hung up and a full queue are three different ends."""
    gate = Gate()
    x = np.ones((1, 2), np.float32)
    settings = READ.model_copy(update={"max_queue_length": 2})
    with serve({"gate": gate}, settings=settings) as server, ca.Client(server.address, timeout=PATIENCE_S) as client:
        where = server.metrics_address
        with ThreadPoolExecutor(1) as callers:
            first = callers.submit(client.inspect, "gate", {"x": x})
            gate.entered.wait(PATIENCE_S)
            gone = {"method": "Inspect", "model": "gate", "version": "1.0"}
            late = gone | {"code": "DEADLINE_EXCEEDED", "reason": "DEADLINE_EXCEEDED"}
            timeout = 0.1
            while not read(where, "cutaway_calls_total", **late):  # one may pass before the server has the call
                with pytest.raises(ca.DeadlineExceeded):
                    client.inspect("gate", {"x": x}, timeout=timeout)
                timeout *= 2
            until(lambda: waiting_calls(where, "gate") == 0)
            before = read(where, "cutaway_calls_total", **gone, code="CANCELLED")  # where a caller's clock is ahead
            with grpc.insecure_channel(server.address) as channel:
                data = wire_requests.encode(InspectRequest("gate", {"x": x})).SerializeToString()
                ask: Any = channel.unary_unary(f"/{SERVICE}/Inspect")
                hung = ask.future(data)
                until(lambda: waiting_calls(where, "gate") == 1)
                with pytest.raises(ca.ResourceExhausted):
                    client.inspect("gate", {"x": x})
                hung.cancel()
                until(lambda: read(where, "cutaway_calls_total", **gone, code="CANCELLED") == before + 1)
            gate.open.set()
            first.result()
        full = gone | {"code": "RESOURCE_EXHAUSTED", "reason": "OVERLOADED"}
        assert read(where, "cutaway_calls_total", **full) == 1
        assert read(where, "cutaway_calls_in_flight", method="Inspect") == 0


def test_a_stream_that_is_cancelled_is_no_fault(capfd: pytest.CaptureFixture[str]) -> None:
    """A caller who hangs up while messages are on their way leaves one line, ``CANCELLED``, and no traceback."""
    rounds, x = 8, np.zeros((1, 1), np.float32)
    with serve({"large": Large()}, settings=Settings(log_format="json")) as server:
        request = InspectRequest("large", {"x": x})
        message = inspection_service_pb2.InspectStreamRequest(request=wire_requests.encode(request)).SerializeToString()
        for _ in range(rounds):
            with grpc.insecure_channel(server.address) as channel:
                send: Any = channel.unary_stream(f"/{SERVICE}/InspectStream")
                messages = send(message)
                for _ in range(3):
                    next(messages)
                time.sleep(0.1)  # the server now waits until the client reads
                messages.cancel()
    written = capfd.readouterr()
    assert "unexpected" not in written.out
    assert [json.loads(line)["code"] for line in written.err.splitlines()] == ["CANCELLED"] * rounds


def test_servers_of_one_process_keep_numbers_of_their_own() -> None:
    """What one counts, the other does not; the port is let go with its server."""
    with serve({"net": Images()}, settings=READ) as one, serve({"net": Images()}, settings=READ) as other:
        with ca.Client(one.address) as client:
            client.list_models()
        assert read(one.metrics_address, "cutaway_calls_total", method="ListModels", code="OK") == 1
        assert read(other.metrics_address, "cutaway_calls_total", method="ListModels", code="OK") == 0
        where = one.metrics_address
    host, _, port = where.partition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


def test_a_port_for_metrics_that_is_taken_is_an_error() -> None:
    """A server that cannot be read as it was asked to does not start, and lets go of what it had."""
    with serve({"net": Images()}, settings=READ) as server:
        taken = server.metrics_address
        with (
            pytest.raises(ca.Unavailable, match=f"cannot listen on {taken}: Address already in use"),
            serve({}, settings=Settings(metrics_address=taken)),
        ):
            pass


@pytest.mark.parametrize("malformed", ["127.0.0.1", "127.0.0.1:high", "127.0.0.1:65536", "127.0.0.1:-1"])
def test_an_address_for_metrics_that_is_none(malformed: str) -> None:
    """A server with a metrics address that no machine can have says that, and does not start."""
    with (
        pytest.raises(ca.InvalidArgument, match=f"'{malformed}' is no HOST:PORT") as refused,
        serve({}, settings=Settings(metrics_address=malformed)),
    ):
        pass
    assert (refused.value.reason, refused.value.field) == ("INVALID_VALUE", "metrics_address")


def test_nothing_is_open_that_was_not_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    """Without settings there is no port for metrics, and a server in somebody's program writes nothing."""
    with serve({"net": Images()}) as server, ca.Client(server.address) as client:
        assert server.metrics_address == ""
        client.inspect("net", {"image": IMAGE})
    assert capfd.readouterr() == ("", "")


def test_each_call_is_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    """With what an operator searches for, and nothing of what was sent: no number, no token, no made-up name."""
    secret = np.full((2, 1, 8, 8), 0.123456789, np.float32)
    asked = InspectRequest("net", {"image": secret}, attributions=(ca.Saliency(),))
    data = wire_requests.encode(asked).SerializeToString()
    with serve({"net": Images()}, settings=Settings(log_format="json")) as server:
        called(server.address, "Inspect", data, x_request_id="mine-1", authorization="Bearer tell-nobody")
        called(server.address, "Inspect", payload("tell-nobody"), traceparent='tell-nobody" ')
    written = capsys.readouterr().err
    assert not re.search(r"tell-nobody|0\.1234|\\x|image", written)
    answered, refused = map(json.loads, written.splitlines())
    assert answered.items() >= {
        "event": "call", "level": "info", "request_id": "mine-1", "method": "Inspect", "model": "net",
        "version": "1.0", "code": "OK", "verdicts": ["Saliency AGREES"], "request_bytes": len(data),
    }.items()  # fmt: skip
    assert set(answered["stages_ms"]) - {"proof"} == {"queue", "decode", "forward", "attribution", "check", "encode"}
    assert answered["ms"] >= sum(answered["stages_ms"].values()) * 0.9
    assert answered["peer"].startswith(("ipv4:127.0.0.1:", "ipv6:"))
    assert answered["reply_bytes"] > 0
    assert answered["timestamp"].endswith("Z")
    assert (refused["code"], refused["reason"]) == ("NOT_FOUND", "MODEL_NOT_FOUND")


def test_a_person_gets_text(capsys: pytest.CaptureFixture[str]) -> None:
    """The same line, to be read."""
    with serve({"net": Images()}, settings=Settings(log_format="text")) as server:
        called(server.address, "Inspect", payload(), x_request_id="mine-1")
    (line,) = capsys.readouterr().err.splitlines()
    for word in ("call", "method=Inspect", "model=net", "code=OK", "request_id=mine-1"):
        assert word in line


def test_a_call_has_a_name_that_comes_back() -> None:
    """The caller's own, or one made up where there is none or one that would spoil a log; with errors too."""
    with serve({"net": Images()}) as server:
        for model, code in (("net", grpc.StatusCode.OK), ("nets", grpc.StatusCode.NOT_FOUND)):
            found, trailers = called(server.address, "Inspect", payload(model), x_request_id="order-66/a")
            assert (found, trailers["x-request-id"]) == (code, "order-66/a")
        made = set()
        for bad in ("", "a b", '"', "x" * 129):
            _, trailers = called(server.address, "Inspect", payload(), x_request_id=bad)
            made.add(trailers["x-request-id"])
    assert len(made) == 4
    assert all(re.fullmatch("[0-9a-f]{32}", name) for name in made)


def test_a_log_that_cannot_be_written_costs_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever read the log is gone; calls are answered, and counted, all the same."""
    reader, writer = socket.socketpair()
    with writer.makefile("w", buffering=1) as output:
        monkeypatch.setattr(sys, "stderr", output)
        settings = READ.model_copy(update={"log_format": "json"})
        with serve({"net": Images()}, settings=settings) as server, ca.Client(server.address) as client:
            reader.close()
            for _ in range(3):
                client.list_models()
            assert read(server.metrics_address, "cutaway_calls_total", method="ListModels", code="OK") == 3
        monkeypatch.undo()


@pytest.mark.slow
def test_a_traceback_shows_no_values() -> None:
    """What goes wrong unforeseen is written down with its lines of code, and not with what variables held: where a
    program serves its models and configures no log, or one of either form, and where a process logs by ours."""
    script = """
import sys
import cutaway
import structlog
from cutaway.server.observability import logging
from cutaway.server.settings import Settings
from cutaway.gateway import serve
from cutaway.server.rpc import servicer
from torch import nn, ones
def fail(reply):
    token = "".join(["tell", "-", "nobody"])
    raise RuntimeError("unforeseen")
servicer.Reply.complete = fail
for form in ("", "json", "text"):
    with serve({"net": nn.Linear(2, 2)}, settings=Settings(log_format=form)) as server:
        try:
            cutaway.Client(server.address).inspect("net", {"input": ones(1, 2)})
        except cutaway.Internal:
            print("failed")
    print("next", file=sys.stderr, flush=True)
for form in ("json", "text"):
    logging.configure(form)
    try:
        fail("".join(["tell", "-", "nobody"]))
    except RuntimeError:
        structlog.get_logger().exception("call failed")
    print("next", file=sys.stderr, flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "failed\n" * 3
    *written, rest = done.stderr.split("next\n")
    assert (len(written), rest) == (5, "")
    for each in written:
        assert "RuntimeError: unforeseen" in each
        assert "in fail" in each
        assert "tell-nobody" not in each


async def states(door: GatewayServer, *services: str) -> list[int]:
    async with grpc.aio.insecure_channel(door.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        return [(await stub.Check(health_pb2.HealthCheckRequest(service=name))).status for name in services]


def test_each_model_has_a_health_of_its_own() -> None:
    """Under its name, with and without a version, by the standard protocol; and it follows the backend's."""
    services = ("", SERVICE, "net", "net/versions/1.0")

    async def ask() -> None:
        worker = Worker.of(Images(), "net")
        backend = Backend(LocalWorkers([worker]), Catalog([worker.name]), Settings())
        door = GatewayServer(backend, Settings(address="127.0.0.1:0", metrics_address="127.0.0.1:0"))
        await door.start()
        gauge = (door.observers.address, "cutaway_model_serving")
        assert await states(door, *services) == [health_pb2.HealthCheckResponse.SERVING] * 4
        assert await asyncio.to_thread(read, *gauge, model="net", version="1.0") == 1
        await door.set_serving(())
        assert await states(door, *services) == [health_pb2.HealthCheckResponse.NOT_SERVING] * 4
        assert await asyncio.to_thread(read, *gauge, model="net", version="1.0") == 0
        await door.set_serving([worker.name])
        assert await states(door, *services) == [health_pb2.HealthCheckResponse.SERVING] * 4
        with pytest.raises(grpc.RpcError):
            await states(door, "nets")
        await door.stop(0)

    asyncio.run(ask())


def test_a_call_is_a_span_below_its_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its stages below it, in order, and its status; all are sent before the server is gone."""
    trace_id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with collecting(monkeypatch) as collector, serve({"net": Images()}) as server:
        called(server.address, "Inspect", payload(), traceparent=f"00-{trace_id}-{parent}-00")  # waits for tests
        called(server.address, "Inspect", payload(), traceparent=f"00-{trace_id}-{parent}-01", x_request_id="mine-1")
        called(server.address, "Inspect", payload("nets"))
        called(server.address, "ListModels", b"", traceparent=f"00-{trace_id}-{parent}-00")
    assert collector.services == {"cutaway"}
    calls = [span for span in collector.spans if span.kind == trace_pb2.Span.SPAN_KIND_SERVER]
    answered, refused = sorted(calls, key=lambda span: span.start_time_unix_nano)  # the last was not to be sampled
    assert answered.name == f"{SERVICE}/Inspect"
    assert (answered.trace_id.hex(), answered.parent_span_id.hex()) == (trace_id, parent)
    assert facts(answered)["cutaway.request_id"] == "mine-1"
    assert facts(answered)["cutaway.model"] == "net"
    assert refused.trace_id.hex() != trace_id
    assert not refused.parent_span_id
    assert (refused.status.code, refused.status.message) == (trace_pb2.Status.STATUS_CODE_ERROR, "MODEL_NOT_FOUND")
    assert facts(refused)["rpc.grpc.status_code"] == grpc.StatusCode.NOT_FOUND.value[0]
    stages = [span for span in collector.spans if span.parent_span_id == answered.span_id]
    assert [span.name for span in stages] == ["queue", "decode", "forward", "encode"]
    assert all(span.trace_id == answered.trace_id for span in stages)
    ends = [answered.start_time_unix_nano, *(span.end_time_unix_nano for span in stages)]
    assert [span.start_time_unix_nano for span in stages] == ends[:-1]
    assert stages[-1].end_time_unix_nano <= answered.end_time_unix_nano


def test_what_is_watched_exists(tmp_path: Path) -> None:
    """Every metric, and every label, that the dashboard and the alerts name is one that a server shows."""
    with serve({"net": Images()}, settings=READ) as server, ca.Client(server.address) as client:
        client.inspect("net", {"image": IMAGE}, attributions=[ca.Saliency()])
        samples = scraped(server.metrics_address)
    metrics = {name for name, _ in samples}
    labels = {label for _, own in samples for label, _ in own} | {"reason", "instance", "archive", "state"}
    dashboard = json.loads((DEPLOY / "grafana" / "cutaway.json").read_text("utf-8"))
    alerts = (DEPLOY / "prometheus" / "alerts.yml").read_text("utf-8")
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = [*queries, *re.findall(r"expr: (?:\|\n)?(.*?)\n +for:", alerts, re.DOTALL)]
    assert len(asked) > 15
    for query in asked:
        named_in_it = set(re.findall(r"\b(?:cutaway|process)_\w+", query))
        assert named_in_it, query
        assert named_in_it <= metrics | {"cutaway_archive_unserved"}, query  # of archives, which are not here
        used = re.findall(r"by \(([^)]*)\)", query) + re.findall(r"(\w+)=~?\"|(\w+)!=\"", query)
        words = {
            word for item in used for part in ([item] if isinstance(item, str) else item) for word in part.split(", ")
        }
        assert words - {""} <= labels, query
    shown = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for query in queries
             for name in re.findall(r"cutaway_\w+", query)}  # fmt: skip
    ours = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count").removesuffix("_created")
            for name in metrics if name.startswith("cutaway_")}  # fmt: skip
    assert {name.removesuffix("_total") for name in ours} == {name.removesuffix("_total") for name in shown}


@pytest.mark.slow
def test_a_server_as_an_operator_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cutaway serve` over TorchServe: it says where metrics are, counts, writes a line of JSON a call, and has a
    health for each model."""
    monkeypatch.setenv("CUTAWAY_METRICS_ADDRESS", "127.0.0.1:0")
    found = [str(DEPLOY.parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, found)))  # for workers, which import the adapter
    package(tmp_path / "store", "net", "tests.support.small_models:Images")
    with serving(tmp_path / "store", tmp_path / "logs") as server:
        where = next(line for line in server.said if line.startswith("metrics: "))
        where = where.removeprefix("metrics: http://").removesuffix("/metrics")
        with ca.Client(server.address) as client:
            for stream in (False, True):
                client.inspect("net", {"image": IMAGE}, attributions=[ca.Saliency()], stream=stream)
        samples = scraped(where)
        with grpc.insecure_channel(server.address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            for service in ("net", "net/versions/1.0"):
                reply = stub.Check(health_pb2.HealthCheckRequest(service=service))
                assert reply.status == health_pb2.HealthCheckResponse.SERVING
    assert named(samples, "cutaway_verdicts_total", "model", "verdict") == {("net", "AGREES"): 2}
    assert named(samples, "cutaway_calls_total", "method", "code") == {("Inspect", "OK"): 1, ("InspectStream", "OK"): 1}
    assert named(samples, "cutaway_batch_size_sum", "model") == {("net",): 2}
    written = (tmp_path / "logs.stderr").read_text("utf-8").splitlines()
    assert [json.loads(line)["method"] for line in written if '"call"' in line] == ["Inspect", "InspectStream"]
