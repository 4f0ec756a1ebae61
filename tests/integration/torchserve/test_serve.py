"""`cutaway serve` with real TorchServe: what it survives, what it says, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import cutaway as ca
from cutaway.contract.errors import Reason
from cutaway.contract.torchserve_messages import PREDICTIONS, decode_reply, decode_worker_reply, encode_call
from tests.conftest import ADAPTERS
from tests.support import manifests
from tests.support.health import health
from tests.support.serving import Server, package, serving
from tests.support.torchserve_port import behind
from tests.support.waiting import PATIENCE_S, until

IMAGE = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)
SERVICE = "cutaway.v1.InspectionService"


def healthy(address: str) -> bool:
    """Whether the health service says SERVING."""
    with grpc.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        reply = stub.Check(health_pb2.HealthCheckRequest(service=SERVICE))
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


def test_says_when_it_is_ready_and_a_call_passes_at_once(server: Server) -> None:
    """`ready` is printed when a real call passes, not before; health agrees."""
    assert server.said[-1] == f"ready: {server.address}"
    assert healthy(server.address)
    with ca.Client(server.address) as client:
        assert client.inspect("digits", {"image": IMAGE}).predictions["output"].shape == (2, 10)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what a process has loaded")
def test_torch_is_loaded_by_workers_alone(server: Server) -> None:
    """The gateway runs no model: it starts without torch, and takes a third of the memory."""
    front_door = psutil.Process(server.process.pid)
    assert not _has_torch(front_door)
    assert any(_has_torch(child) for child in front_door.children(recursive=True))


def _has_torch(process: psutil.Process) -> bool:
    return any("libtorch" in each.path for each in process.memory_maps())


def test_lists_every_sound_model(server: Server) -> None:
    """Every sound archive is listed with its version; the damaged one is not."""
    with ca.Client(server.address) as client:
        assert [(each.model, each.version) for each in client.list_models()] == [
            ("digits", "1.0"),
            ("mirror", "1.0"),
            ("resnet", "1.0"),
            ("sentences", "1.0"),
        ]


def test_a_damaged_archive_is_named_and_harms_no_other(server: Server) -> None:
    """The operator is told at the start, the caller at the call; the sound models serve."""
    assert any(line.startswith("not served: damaged.mar") for line in server.logged)
    with ca.Client(server.address) as client, pytest.raises(ca.NotFound, match=r"damaged\.mar") as caught:
        client.inspect("damaged", {"image": IMAGE})
    assert caught.value.reason == "MODEL_NOT_LOADED"
    assert "cutaway package" in caught.value.message


def test_a_store_without_a_sound_archive_is_refused(tmp_path: Path) -> None:
    """Nothing to serve is an error at the start, with what would be right."""
    from cutaway.server.model_store import read_store

    with pytest.raises(ca.NotFound, match=r"holds no \.mar archive; make one with `cutaway package`"):
        read_store(tmp_path)
    (tmp_path / "text.mar").write_text("no archive")
    with pytest.raises(ca.NotFound, match=r"no model can be served: text\.mar"):
        read_store(tmp_path)


def test_describes_a_model_with_its_insides(server: Server) -> None:
    """GetModel lists inputs, outputs, labels and every module with class, parameters and shapes."""
    with ca.Client(server.address) as client:
        detail = client.get_model("digits/versions/1.0")
    conv2 = next(module for module in detail.modules if module.name == "conv2")
    assert (conv2.type, conv2.parameters, conv2.output_shapes, conv2.calls) == ("Conv2d", 4640, ((1, 32, 8, 8),), 1)
    assert detail.labels == tuple("0123456789")
    assert detail.inputs[0].shape == (-1, 1, 8, 8)
    assert detail.outputs[0].shape == (1, 10)
    assert len(detail.provenance.weights_sha256) == 64


def test_reflection_shows_the_service(server: Server) -> None:
    """A generic gRPC tool can list the service without our protos."""
    with grpc.insecure_channel(server.address) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        replies = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        names = {service.name for service in next(replies).list_services_response.service}
    others = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert names == {SERVICE, "inference.GRPCInferenceService", *others}


@pytest.mark.parametrize(
    ("parts", "reason", "text"),
    [
        ({"inspect": b"\xff\xfegarbage"}, "MALFORMED_REQUEST", "bytes are not a cutaway.v1.InspectRequest"),
        ({"body": b"garbage"}, "MALFORMED_REQUEST", "exactly one of the parts inspect, describe, stream, got body"),
        ({}, "MALFORMED_REQUEST", "got none"),
        ({"inspect": b"", "describe": b""}, "MALFORMED_REQUEST", "exactly one of the parts"),
    ],
)
def test_garbage_straight_to_torchserve_is_answered(
    server: Server, parts: dict[str, bytes], reason: str, text: str
) -> None:
    """Garbage sent to TorchServe's own port gets a reason inside the reply, and costs no worker."""
    torchserve = behind(server)
    workers = worker_pids(server)
    with grpc.insecure_channel(torchserve.where) as channel:
        predict: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(PREDICTIONS)
        reply = decode_reply(predict(encode_call("digits", "", parts), metadata=torchserve.metadata))
    with pytest.raises(ca.CutawayError, match=text) as caught:
        decode_worker_reply(reply)
    assert caught.value.reason == reason
    assert worker_pids(server) == workers


def test_a_missing_model_is_not_found_on_torchserves_port_too(server: Server) -> None:
    """TorchServe says INTERNAL for a missing model; our client says NOT_FOUND."""
    with behind(server).client() as client:
        with pytest.raises(ca.NotFound) as caught:
            client.inspect("nothing", {"image": IMAGE})
        assert caught.value.reason == "MODEL_NOT_FOUND"
        with pytest.raises(ca.NotFound) as caught:
            client.inspect("digits/versions/9", {"image": IMAGE})
        assert caught.value.reason == "VERSION_NOT_FOUND"
        with pytest.raises(ca.Unimplemented):
            client.list_models()


def test_a_call_whose_time_runs_out_harms_no_other(server: Server) -> None:
    """It gets DEADLINE_EXCEEDED, and the worker serves the next one."""
    with ca.Client(server.address) as client:
        noise = np.zeros((1, 3, 224, 224), np.float32)
        with pytest.raises(ca.DeadlineExceeded):
            client.inspect(
                "resnet", {"pixel_values": noise}, attributions=[ca.IntegratedGradients(n_steps=8)], timeout=0.5
            )
        assert client.inspect("resnet", {"pixel_values": noise[..., :64, :64]}).predictions["logits"].shape == (1, 2)


def test_only_the_front_door_is_public(server: Server) -> None:
    """TorchServe and its workers listen on loopback only."""
    group = psutil.Process(server.process.pid).children(recursive=True)
    listening = [
        connection.laddr.ip
        for process in group
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_torchserves_log_is_quiet_and_in_one_place(server: Server) -> None:
    """TorchServe writes one file, and nothing for a call that went well."""
    (log,) = server.log_dir.iterdir()
    before = log.stat().st_size
    with ca.Client(server.address) as client:
        for _ in range(20):
            client.inspect("digits", {"image": IMAGE})
    assert log.stat().st_size == before


@pytest.fixture(scope="module")
def small_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one small model in two versions, and one whose code does not load."""
    directory = tmp_path_factory.mktemp("small")
    code = Path(__file__).parents[2] / "support" / "adapters" / "tiny_adapter.py"
    package(directory, "tiny", f"{code}:Tiny")
    package(directory, "tiny", f"{code}:Tiny", version="1.10")
    package(directory, "broken", f"{code}:Broken")
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torchserve", "processes"])
def test_an_adapter_that_does_not_load_costs_the_others_nothing(small_store: Path, tmp_path: Path, engine: str) -> None:
    """The operator and the caller read why a model did not load; the highest version is the default. Any signal ends
    the server and leaves nothing."""
    with serving(small_store, tmp_path / "logs", f"--engine={engine}") as small:
        told = [line for line in small.logged if line.startswith("not served: broken")]
        assert told
        assert "weights went missing" in told[0]
        assert any(line.startswith("tiny 1.10: weights of 0.03 KiB") for line in small.logged)
        with ca.Client(small.address) as client:
            assert client.inspect("tiny", {"x": np.ones((1, 3), np.float32)}).provenance.version == "1.10"
            assert client.inspect("tiny/versions/1.0", {"x": np.ones((1, 3), np.float32)}).provenance.version == "1.0"
            with pytest.raises(ca.NotFound, match="weights went missing"):
                client.inspect("broken", {"x": np.ones((1, 3), np.float32)})
        assert_ends_and_leaves_nothing(small, signal.SIGINT)


@pytest.mark.slow
def test_a_model_out_of_reach_of_hooks_says_so_to_its_callers(tmp_path: Path) -> None:
    """Such models answer each with a reason of their own, and cost the others nothing. That all kinds are told apart is
    proven without a server in test_awkward_models.py."""
    kinds = ("Compiled", "Scripted", "Quantised")
    code = Path(__file__).parents[2] / "support" / "adapters" / "tiny_adapter.py"
    for kind in ("Tiny", *kinds):
        package(tmp_path, kind.lower(), f"{code}:{kind}")
    with serving(tmp_path, tmp_path / "logs") as running, ca.Client(running.address) as client:
        x = np.ones((1, 3), np.float32)
        assert client.inspect("tiny", {"x": x}).predictions["output"].shape == (1, 2)
        for kind in kinds:
            with pytest.raises(ca.FailedPrecondition) as caught:
                client.inspect(kind.lower(), {"x": x})
            assert caught.value.reason == f"MODEL_{kind.upper()}"
            assert caught.value.field == "model"
        assert_ends_and_leaves_nothing(running, signal.SIGTERM)


_UNSEEDED = """
import torch
from cutaway.adapters import Adapter

class Unseeded(Adapter):
    def build(self):
        return torch.nn.Linear(3, 2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["embedded", "torchserve", "processes"])
def test_random_parameters_are_not_served_unless_allowed(tmp_path: Path, engine: str) -> None:
    """The operator, the callers and the health check learn of it; the archive that allows them is served."""
    (tmp_path / "unseeded.py").write_text(_UNSEEDED)
    adapter = f"{tmp_path / 'unseeded.py'}:Unseeded"
    package(tmp_path / "store", "refused", adapter)
    package(tmp_path / "store", "allowed", adapter, random_weights=True)
    options = (tmp_path / "store", tmp_path / "logs", f"--engine={engine}")
    with serving(*options) as running, ca.Client(running.address) as client:
        assert running.said[:-1] == ["serving allowed 1.0"]
        assert any(line.startswith("not served: refused 1.0: WEIGHTS_MISSING") for line in running.logged)
        x = {"input": np.ones((1, 3), np.float32)}
        assert client.inspect("allowed", x).predictions["output"].shape == (1, 2)
        with pytest.raises(ca.FailedPrecondition, match="package it with --weights FILE") as caught:
            client.inspect("refused", x)
        assert (caught.value.reason, caught.value.field) == (Reason.WEIGHTS_MISSING, "model")
        assert health(running.address, "allowed") == "SERVING"
        assert health(running.address, "refused") == "NOT_SERVING"


_ENDINGS = """
import argparse, ctypes, os, signal, sys, time
import torch
from cutaway.adapters import Adapter

class Leaves(Adapter):
    def build(self):
        sys.exit("the license has expired")

class Parses(Adapter):
    def build(self):
        parser = argparse.ArgumentParser("train.py")
        parser.add_argument("--data", required=True)
        parser.parse_args([])

class Killed(Adapter):
    def build(self):
        print("reading 200 GB of weights")
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)

class Crashes(Adapter):
    def build(self):
        ctypes.string_at(0)

class Aborts(Adapter):
    def build(self):
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\\n")
        os.abort()

class Stops(Adapter):
    def build(self):
        os._exit(3)

class Raises(Adapter):
    def build(self):
        raise GeneratorExit("of no use")

class Waits(Adapter):
    def build(self):
        print("waiting for the license server")
        sys.stdout.flush()
        time.sleep(3600)
"""

_TOLD = {
    "Leaves": ["SystemExit: the license has expired"],
    "Parses": ["SystemExit: 2", "train.py: error: the following arguments are required: --data"],
    "Killed": ["ended by SIGKILL", "reading 200 GB of weights"],
    "Crashes": ["ended by SIGSEGV", "Segmentation fault"],
    "Aborts": ["ended by SIGABRT", "std::bad_alloc"],
    "Stops": ["ended with exit status 3"],
    "Raises": ["GeneratorExit: of no use"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "kinds"),
    [
        ("processes", (*_TOLD, "Waits")),
        ("torchserve", ("Parses", "Killed", "Crashes", "Waits")),
        ("ray", ("Leaves", "Stops")),
        ("embedded", ("Leaves", "Parses", "Raises")),
    ],
)
def test_a_model_that_ends_its_process_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, kinds: tuple[str, ...]
) -> None:
    """Whatever a model does while it loads, or if it never ends loading, the others serve before the time to start is
    over; the operator and the callers read how it ended and what it printed last."""
    monkeypatch.setenv("CUTAWAY_START_TIMEOUT_S", "3600")
    monkeypatch.setenv("CUTAWAY_RAY_CPUS", "0.1")
    (tmp_path / "endings.py").write_text(_ENDINGS)
    for kind in kinds:
        package(tmp_path / "store", kind.lower(), f"{tmp_path / 'endings.py'}:{kind}")
    package(tmp_path / "store", "tiny", f"{ADAPTERS / 'tiny_adapter.py'}:Tiny")
    x = {"x": np.ones((1, 3), np.float32)}
    with serving(tmp_path / "store", tmp_path / "logs", f"--engine={engine}") as running:
        with ca.Client(running.address, timeout=PATIENCE_S) as client:
            assert running.said[:-1] == ["serving tiny 1.0"]
            assert client.inspect("tiny", x).predictions["output"].shape == (1, 2)
            ended = {*kinds} - {"Waits"}
            until(
                lambda: (
                    {item.archive for item in client.list_unserved() if item.state == "FAILED"}
                    >= {f"{kind.lower()}-1.0.mar" for kind in ended}
                )
            )
            for kind in ended:
                with pytest.raises(ca.NotFound) as caught:
                    client.inspect(kind.lower(), x)
                told = _TOLD[kind]
                if engine == "torchserve":  # its JVM does not tell how a process ended
                    told = [words for words in told if not words.startswith(("ended by SIG", "ended with exit"))]
                elif engine == "embedded":  # what is printed is on the terminal
                    told = told[:1]
                elif (engine, kind) == ("ray", "Stops"):
                    told = ["its processes ended while it loaded"]
                assert all(words in caught.value.message for words in told), caught.value.message
            states = {item.model: item.state for item in client.list_unserved()}
            assert states == {kind.lower(): "LOADING" if kind == "Waits" else "FAILED" for kind in kinds}
        assert running.stop() == 0


@pytest.mark.slow
def test_a_model_that_never_loads_has_its_time_in_one_process_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can end its thread. It keeps the others only for the time to start, and the server not from ending."""
    monkeypatch.setenv("CUTAWAY_START_TIMEOUT_S", "60")  # enough for the other one, whatever else the machine does
    (tmp_path / "endings.py").write_text(_ENDINGS)
    package(tmp_path / "store", "waits", f"{tmp_path / 'endings.py'}:Waits")
    package(tmp_path / "store", "yields", f"{ADAPTERS / 'tiny_adapter.py'}:Tiny")
    with serving(tmp_path / "store", tmp_path / "logs", "--engine=embedded") as running:
        assert "serving yields 1.0" in running.said
        assert "not served: waits 1.0: it did not load within 60 s" in running.logged
        assert running.stop() == 0


def assert_ends_and_leaves_nothing(small: Server, number: int) -> None:
    """A signal ends the server with status 0; no process, port or directory is left."""
    family = psutil.Process(small.process.pid).children(recursive=True)
    directories = {Path(child.cwd()) for child in family} - {Path.cwd()}
    assert directories
    os.kill(small.process.pid, number)
    assert small.process.wait() == 0
    assert psutil.wait_procs(family, timeout=PATIENCE_S)[1] == []
    assert not any(directory.exists() for directory in directories)
    host, port = small.address.rsplit(":", 1)
    with pytest.raises(ConnectionRefusedError), socket.create_connection((host, int(port))):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["embedded", "processes"])
def test_the_other_engines_need_no_java(
    small_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """They serve the same archives with no Java process and no Java to be found. Tests of a model run before anybody
    asks."""
    proofs = tmp_path / "proofs"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("CUTAWAY_PROOFS_DIR", str(proofs))
    monkeypatch.setenv("CUTAWAY_IDLE_TESTS_S", "120")
    with serving(small_store, tmp_path / "logs", f"--engine={engine}") as running:
        for begin in ("not served: broken 1.0: ADAPTER_INVALID", "tiny 1.10: weights of 0.03 KiB"):
            assert any(line.startswith(begin) for line in running.logged)
        with ca.Client(running.address) as client:
            assert client.inspect("tiny", {"x": np.ones((1, 3), np.float32)}).predictions["output"].shape == (1, 2)
            until(lambda: sum("Saliency" in path.read_text("utf-8") for path in proofs.glob("*.json")) == 2)
            explained = client.inspect("tiny", {"x": np.ones((1, 3), np.float32)}, attributions=[ca.Saliency()])
            assert explained.timings.check_ms > 0 == explained.timings.proof_ms
        children = psutil.Process(running.process.pid).children(recursive=True)
        assert not any("java" in child.name() for child in children)
        assert bool(children) == (engine == "processes")
        assert running.stop() == 0


_TALKING = """
import logging, warnings
import torch
from cutaway.adapters import Adapter

class Talking(Adapter):
    def build(self):
        warnings.warn("a warning of the model")
        logging.getLogger("model").warning("a log line of the model")
        try:
            raise ValueError("a caught error")
        except ValueError:
            logging.getLogger("model").exception("with a traceback")
        torch.manual_seed(0)
        return torch.nn.Linear(3, 2)
"""


@pytest.mark.slow
def test_every_line_of_the_log_is_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On standard error: what is not served, what libraries and models log or warn of, what gRPC says of a caller
    without TLS. Standard output has what scripts wait for, and nothing else."""
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    leaf.private_key_pem.write_to_path(tmp_path / "key.pem")
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
    monkeypatch.setenv("CUTAWAY_TLS_KEY", str(tmp_path / "key.pem"))
    monkeypatch.setenv("CUTAWAY_TLS_CERTIFICATE", str(tmp_path / "certificate.pem"))
    monkeypatch.setenv("CUTAWAY_LOG_FORMAT", "json")
    monkeypatch.setenv("GRPC_VERBOSITY", manifests.image().variables["GRPC_VERBOSITY"])
    (tmp_path / "talking.py").write_text(_TALKING)
    package(tmp_path / "store", "talking", f"{tmp_path / 'talking.py'}:Talking")
    (tmp_path / "store" / "damaged-1.0.mar").write_bytes(b"no archive")
    with serving(tmp_path / "store", tmp_path / "logs", "--engine=embedded") as server:
        with ca.Client(server.address) as client, pytest.raises(ca.Unavailable):
            client.list_models()
        assert server.said == ["serving talking 1.0", f"ready: {server.address}"]
        assert server.stop() == 0
    written = "\n".join(server.logged)
    for words in ("not served: damaged-1.0.mar", "a warning of the model", "a log line of the model", "a traceback"):
        assert words in written


_SETTLING = """
import gc, os, signal, sys
from pathlib import Path
from cutaway.server.application import run
from cutaway.server.settings import Settings

def announce(line):
    if line.startswith("ready: "):
        print(gc.get_freeze_count(), len(gc.get_objects()))
        os.kill(os.getpid(), signal.SIGTERM)

run(Path(sys.argv[1]), Settings(address="127.0.0.1:0", engine="embedded"), workers=None, announce=announce)
"""


@pytest.mark.slow
def test_no_collection_looks_through_what_stays(small_store: Path) -> None:
    """Once it is ready, Python's collector leaves alone what was there by then: looking through it, torch and Captum
    included, would hold up every call for a tenth of a second again and again."""
    command = [sys.executable, "-c", _SETTLING, str(small_store)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    left_alone, looked_through = map(int, said.split())
    assert left_alone > 50 * looked_through


def worker_pids(server: Server) -> set[int]:
    """The processes behind the gateway."""
    return {child.pid for child in psutil.Process(server.process.pid).children(recursive=True)}
