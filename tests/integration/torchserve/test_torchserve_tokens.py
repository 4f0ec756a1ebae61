"""TorchServe's own tokens: whoever reaches its ports, as every user of the machine does, is told nothing and moves
nothing without one; and only we can read them."""

from __future__ import annotations

import stat
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

import cutaway as ca
from cutaway.client.trust import Metadata, bearer
from cutaway.contract.torchserve_messages import PING, PREDICTIONS, STREAM_PREDICTIONS, encode_call
from tests.conftest import ADAPTERS
from tests.support.processes import leader, worker
from tests.support.serving import Server, package, serving
from tests.support.torchserve_port import MODEL, Behind, behind, home, key, managed, port
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

X = {"x": np.ones((1, 3), np.float32)}
WRONG = ["none", "made up", "management", "API", "no scheme"]
REST = [
    ("PUT", "/models/tiny?min_worker=0&max_worker=0&synchronous=true"),
    ("PUT", "/models/tiny/1.0/set-default"),
    ("GET", "/models"),
    ("GET", "/models/tiny"),
    ("POST", "/models?url=tiny.mar"),
    ("DELETE", "/models/tiny"),
    ("GET", "/token?type=management"),
    ("GET", "/ping"),
    ("POST", "/predictions/tiny"),
    ("POST", "/explanations/tiny"),
    ("POST", "/v1/models/tiny:predict"),
    ("GET", "/metrics"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A gateway and its TorchServe, of their own: tests here may harm them."""
    directory = tmp_path_factory.mktemp("tokens")
    package(directory, "tiny", f"{ADAPTERS / 'tiny_adapter.py'}:Tiny")
    with serving(directory, directory / "logs") as running:
        yield running


@pytest.fixture
def directory(server: Server) -> Path:
    """What TorchServe runs in."""
    return home(leader(server))


def carried(directory: Path, which: str) -> Metadata:
    """What a call carries that is not to be answered."""
    match which:
        case "none":
            return ()
        case "made up":
            return bearer("AAAAAAAA")
        case "management":
            return bearer(key(directory, "management"))
        case "API":
            return bearer(key(directory, "API"))
    return (("authorization", key(directory, "inference")),)


@pytest.mark.parametrize("which", WRONG)
@pytest.mark.parametrize("method", [PREDICTIONS, PING, STREAM_PREDICTIONS])
def test_a_call_without_the_token_is_refused(server: Server, directory: Path, method: str, which: str) -> None:
    """On the port for inference: no prediction, and not even whether it is well."""
    request = encode_call("tiny", "", {"describe": b""})
    with grpc.insecure_channel(behind(server).where) as channel, pytest.raises(grpc.RpcError) as caught:
        list(channel.unary_stream(method)(request, timeout=PATIENCE_S, metadata=carried(directory, which)))  # type: ignore[arg-type]
    assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("which", ["none", "inference"])
@pytest.mark.parametrize("method", list(MODEL))
def test_models_cannot_be_managed_without_the_token(server: Server, directory: Path, method: str, which: str) -> None:
    """On the port for management: who may ask cannot look, nor take the workers away."""
    token = "AAAAAAAA" if which == "none" else key(directory, "inference")
    before = worker(server, "tiny").pid
    with pytest.raises(grpc.RpcError) as caught:
        managed(f"127.0.0.1:{port(directory, 'grpc_management_port')}", method, MODEL[method]("tiny"), token)
    assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert worker(server, "tiny").pid == before


@pytest.mark.parametrize(("method", "path"), REST)
def test_plain_http_is_refused(server: Server, directory: Path, method: str, path: str) -> None:
    """Without the token, and whoever has that of management: both APIs share a port, which asks for both tokens."""
    before = worker(server, "tiny").pid
    address = f"http://127.0.0.1:{port(directory, 'inference_address')}{path}"
    for headers in ({}, {"Authorization": f"Bearer {key(directory, 'management')}"}):
        body = b"describe=" if method == "POST" else None
        with pytest.raises(urllib.error.HTTPError, match="400") as caught:
            urllib.request.urlopen(urllib.request.Request(address, body, headers, method=method), timeout=PATIENCE_S)
        assert b"Token Authorization failed" in caught.value.read()
    assert worker(server, "tiny").pid == before


def test_nobody_else_can_read_the_tokens(server: Server, directory: Path) -> None:
    """They lie in a file of ours in a directory of ours, and neither in a command line nor in what is logged."""
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "key_file.json").stat().st_mode) == 0o600
    token = key(directory, "inference")
    assert token not in " ".join(leader(server).cmdline())
    assert all(token not in log.read_text() for log in server.log_dir.iterdir())


def test_our_client_shows_the_token(server: Server) -> None:
    """It is answered with it, whole and in pieces, and without is told what is missing."""
    inner = behind(server)
    with inner.client() as client:
        for stream in (False, True):
            assert client.inspect("tiny", X, stream=stream).predictions
    for token in (None, "AAAAAAAA"):
        with Behind(inner.where, token).client() as client, pytest.raises(ca.Unauthenticated) as caught:
            client.inspect("tiny", X)
        assert caught.value.reason == "TOKEN_INVALID"


def test_the_token_goes_to_no_other_machine_in_plaintext() -> None:
    """As any token of our client's."""
    with pytest.raises(ca.InvalidArgument) as caught:
        ca.Client("torchserve://192.0.2.1:7070", token="AAAAAAAA")
    assert caught.value.reason == "TOKEN_EXPOSED"


def test_a_torchserve_that_comes_back_has_another(server: Server) -> None:
    """Calls pass again, and the token of before opens nothing."""
    before = behind(server)
    with ca.Client(server.address) as client:
        jvm = leader(server)
        jvm.kill()
        jvm.wait(PATIENCE_S)
        _until_answered(client)
        after = behind(server)
        assert after.token != before.token
        with Behind(after.where, before.token).client() as old, pytest.raises(ca.Unauthenticated):
            old.get_model("tiny")


def _until_answered(client: ca.Client) -> None:
    for _ in range(600):
        try:
            client.inspect("tiny", X)
        except ca.Unavailable as failure:
            time.sleep(failure.retry_after_s or 0.1)
        else:
            return
    raise AssertionError("it does not come back")
