"""A TorchServe of our own: it answers, keeps to itself, and leaves nothing behind, however it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from model_archiver.model_archiver_config import ModelArchiverConfig
from model_archiver.model_packaging_utils import ModelExportUtils

from cutaway.client.trust import bearer
from cutaway.contract.errors import CutawayError, Reason
from cutaway.contract.torchserve_messages import PREDICTIONS, decode_reply, encode_call
from cutaway.server.archive import reader
from cutaway.server.processes import environment, torchserve
from cutaway.server.processes.environment import WorkerEnvironment
from cutaway.server.processes.torchserve import TorchServe
from tests.support import torchserve_port
from tests.support.serving import package
from tests.support.torchserve_port import key
from tests.support.waiting import PATIENCE_S, until

MESSAGE_BYTES = 1 << 20

ECHO = """
import json, os, pathlib, sys, time

class Echo:
    def initialize(self, context):
        print("the echo is awake")
        print("the echo complains", file=sys.stderr)

    def handle(self, data, context):
        return [json.dumps(self.seen(row)).encode() for row in data]

    def seen(self, row):
        row = {name: bytes(value).decode() for name, value in row.items()}
        if row["inspect"].startswith("/"):
            pathlib.Path(row["inspect"]).touch()
            time.sleep(1)
        return {"row": row, "pid": os.getpid(), "group": os.getpgid(0), "path": sys.path, "python": sys.executable}
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store with ``echo.mar``: none of Cutaway's, but a plain handler that tells what it got."""
    directory, files = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("files")
    (files / "echo_handler.py").write_text(ECHO)
    (files / "model-config.yaml").write_text("minWorkers: 1\nmaxWorkers: 1\nbatchSize: 4\nmaxBatchDelay: 2\n")
    config = ModelArchiverConfig("echo", "echo_handler.py", "1.0", config_file="model-config.yaml")
    served = ModelExportUtils.generate_manifest_json(config)
    ModelExportUtils.archive(str(directory), "echo", str(files), served)
    return directory


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the shared server logs."""
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def server(store: Path, log_dir: Path) -> Iterator[TorchServe]:
    """The server that most tests share."""
    with serving(store, log_dir=log_dir) as running:
        yield running


@contextmanager
def serving(store: Path, *archives: str, workers: int | None = None, **arguments: Any) -> Iterator[TorchServe]:
    """A server of the echo, or of ``archives``, that stops when the block ends."""
    server = TorchServe(
        [unpacked(store, name, workers) for name in archives or ["echo.mar"]],
        environment=WorkerEnvironment(MESSAGE_BYTES),
        **arguments,
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()


def unpacked(store: Path, name: str, workers: int | None = None) -> Path:
    """The directory of an archive of the store, which is unpacked once."""
    directory = store / f"unpacked-{workers}" / name
    if not directory.exists():
        reader.unpack(store / name, directory, workers=workers)
    return directory


def ask(server: TorchServe, payload: bytes = b"hello") -> Any:
    """What the echo says to a real gRPC call, which waits until a worker is awake."""
    address, token = server.endpoint
    with grpc.insecure_channel(address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(PREDICTIONS)
        asked = encode_call("echo", "", {"inspect": payload})
        return json.loads(decode_reply(call(asked, timeout=PATIENCE_S, metadata=bearer(token))))


def managed(server: TorchServe, method: str, request: bytes) -> str:
    """The answer of the management API."""
    _, directory = footprint(server)
    address = f"127.0.0.1:{torchserve_port.port(directory, 'grpc_management_port')}"
    return torchserve_port.managed(address, method, request, key(directory, "management"))


def footprint(server: TorchServe) -> tuple[int, Path]:
    """The process group of a server, and the directory that it runs in."""
    group = ask(server)["group"]
    return group, Path(psutil.Process(group).cwd())


def processes(group: int) -> list[psutil.Process]:
    """The living processes of a process group."""
    return [process for process in psutil.process_iter() if _lives_in(group, process)]


def _lives_in(group: int, process: psutil.Process) -> bool:
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, ProcessLookupError):
        return False


def watchdogs(directory: Path) -> list[psutil.Process]:
    """The watchdogs of this very process that watch over ``directory``."""
    return [child for child in psutil.Process().children() if str(directory) in child.cmdline()]


# It answers.


def test_a_worker_answers(server: TorchServe) -> None:
    """A call's bytes reach the handler under their name, in a worker that runs this very Python."""
    said = ask(server, b"who is there")

    assert said["row"] == {"inspect": "who is there"}
    assert said["python"] == sys.executable
    assert server.poll() is None


def test_threads_of_a_worker_hardly_spin(server: TorchServe) -> None:
    """Workers that are busy at once do not use each other's cores while they wait."""
    group, _ = footprint(server)
    workers = [each for each in processes(group) if any("model_service_worker" in word for word in each.cmdline())]
    assert workers
    for worker in workers:
        assert environment.WAITING.items() <= worker.environ().items()


def test_messages_may_be_as_large_as_was_said(server: TorchServe) -> None:
    """The limit is on the message itself: what TorchServe wraps around it comes on top."""
    payload = b"x" * MESSAGE_BYTES

    assert len(ask(server, payload)["row"]["inspect"]) == MESSAGE_BYTES


def test_loopback_only(server: TorchServe) -> None:
    """Nobody outside this machine can reach any of its ports."""
    group, _ = footprint(server)
    listening = [
        connection.laddr.ip
        for process in processes(group)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]

    assert listening
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}


@pytest.mark.parametrize("method", ["RegisterModel", "UnregisterModel"])
def test_models_stay_what_they_are(server: TorchServe, method: str) -> None:
    """Who may call the management port can neither bring a model, which is code, nor take one away."""
    with pytest.raises(grpc.RpcError, match="Model API disabled"):
        managed(server, method, torchserve_port.MODEL[method]("echo"))

    assert len(awake(server)) == 1


def test_one_quiet_log(server: TorchServe, log_dir: Path) -> None:
    """One file has what the models print, and calls add nothing to it."""
    until(lambda: "the echo complains" in server.log_tail())
    log = log_dir / torchserve.LOG_NAME
    before = log.read_text()
    for _ in range(20):
        ask(server)

    assert log.read_text() == before == server.log_tail()
    assert "the echo is awake" in before
    assert "[WARN ]" in next(line for line in before.splitlines() if "the echo complains" in line)
    assert list(log_dir.iterdir()) == [log]


@pytest.mark.slow
def test_two_side_by_side(
    server: TorchServe,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A second server shares nothing with the first, is what it is asked to be whatever the environment says, and
    keeps out of the user's directory and off the console."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TS_CONFIG_FILE", "/nowhere/config.properties")
    monkeypatch.setenv("PYTHONPATH", "mine")
    with serving(store, workers=2) as second:
        (one, here), (two, there) = footprint(server), footprint(second)
        assert one != two
        assert here != there
        until(lambda: len(awake(second)) == 2)
        assert len(awake(server)) == 1
        assert str(tmp_path / "mine") in ask(second)["path"]
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def awake(server: TorchServe) -> list[Any]:
    """The workers that are ready."""
    (told,) = json.loads(managed(server, "DescribeModel", torchserve_port.MODEL["DescribeModel"]("echo")))
    return [worker for worker in told["workers"] if worker["status"] == "READY"]


@pytest.mark.slow
def test_a_port_that_somebody_took(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another program takes a port between choosing and listening, others are chosen."""
    choose = torchserve._free_ports
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        taken = squatter.getsockname()[1]
        chosen: list[Sequence[int]] = []

        def choose_badly_once(count: int) -> list[int]:
            ports = choose(count)
            chosen.append(ports if chosen else [ports[0], taken, *ports[2:]])
            return list(chosen[-1])

        monkeypatch.setattr(torchserve, "_free_ports", choose_badly_once)
        with serving(store) as server:
            assert len(chosen) == 2
            assert server.endpoint.address == f"127.0.0.1:{chosen[1][1]}"
            assert ask(server)["row"] == {"inspect": "hello"}


# It ends.


@pytest.mark.slow
def test_stop_leaves_nothing(store: Path, tmp_path: Path) -> None:
    """A call under way may finish; then there is no process and no directory, but still what had been logged."""
    asked = tmp_path / "asked"
    with ThreadPoolExecutor() as pool:
        with serving(store) as server:
            group, directory = footprint(server)
            assert len(processes(group)) == 2
            answer = pool.submit(ask, server, bytes(asked))
            until(asked.exists)

        assert answer.result()["row"] == {"inspect": str(asked)}
    assert processes(group) == []
    assert watchdogs(directory) == []
    assert not directory.exists()
    assert server.poll() is not None
    assert "the echo is awake" in server.log_tail()


@pytest.mark.slow
def test_a_server_that_was_killed(store: Path) -> None:
    """Where somebody kills the JVM, poll() says so and ends its workers, and stop() leaves nothing."""
    with serving(store) as server:
        group, directory = footprint(server)
        os.kill(group, signal.SIGKILL)
        until(lambda: server.poll() is not None)
        assert server.poll() == -signal.SIGKILL
        assert processes(group) == []

    assert not directory.exists()


OWNER = """
import sys, time
from pathlib import Path
from cutaway.server.processes.environment import WorkerEnvironment
from cutaway.server.processes.torchserve import TorchServe

server = TorchServe([Path(sys.argv[1])], environment=WorkerEnvironment(1 << 20))
server.start()
print(server.endpoint.address, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_an_owner_that_was_killed(store: Path) -> None:
    """Where this very process is killed, and can tidy up no more, its TorchServe does not live on."""
    command = [sys.executable, "-c", OWNER, str(unpacked(store, "echo.mar"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline()
        children = psutil.Process(owner.pid).children(recursive=True)
        directory = next(Path(child.cwd()) for child in children if child.name() == "java")
        owner.kill()

    until(lambda: not any(map(_lives, children)) and not directory.exists())


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


# It does not begin.


def test_a_start_that_fails(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that cannot start says why, in its log's words, and leaves nothing."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    echo = unpacked(store, "echo.mar")
    server = TorchServe([echo], environment=WorkerEnvironment(MESSAGE_BYTES), heap_bytes=1)

    with pytest.raises(CutawayError) as caught:
        server.start()

    assert caught.value.reason == Reason.BACKEND_UNAVAILABLE
    assert "Too small maximum heap" in caught.value.message
    assert "Too small maximum heap" in server.log_tail()
    assert list(tmp_path.iterdir()) == []
    assert any(echo.iterdir())


@pytest.mark.slow
def test_a_model_that_does_not_load(tmp_path: Path) -> None:
    """The log says in one line why our handler could not load a model, with no page of traceback at every attempt."""
    package(tmp_path, "empty", "cutaway.adapters:Adapter")
    with serving(tmp_path, "empty-1.0.mar") as server:
        until(lambda: "cutaway cannot load" in server.log_tail())

    assert (
        "cutaway cannot load empty 1.0: ADAPTER_INVALID: Adapter must define build() or load()\n" in server.log_tail()
    )
    assert "Traceback" not in server.log_tail()
