"""Where a gateway listens, and where a client calls."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import cutaway as ca
from cutaway.gateway import serve
from cutaway.server.listening import check_addresses
from cutaway.server.settings import Settings
from tests.support.cli import cutaway
from tests.support.serving import package

BAD = {
    "0.0.0.0": "is no HOST:PORT: the port is missing, such as in 0.0.0.0:50051",
    "localhost": "is no HOST:PORT: the port is missing",
    "127.0.0.1:99999": "is no HOST:PORT: the largest port is 65535",
    "127.0.0.1:99999999999999": "is no HOST:PORT: the largest port is 65535",
    "127.0.0.1:": "is no HOST:PORT",
    "127.0.0.1:-1": "is no HOST:PORT",
    "127.0.0.1:http": "is no HOST:PORT",
    "::1:50051": "is no HOST:PORT: an IPv6 address stands in brackets before the port, such as [::1]:50051",
    "::": "is no HOST:PORT: an IPv6 address stands in brackets",
    "[::1]": "is no HOST:PORT: an IPv6 address stands in brackets",
    "http://127.0.0.1:50051": "is no HOST:PORT: leave out http://",
    "127.0.0.1:1,127.0.0.1:2": "is no HOST:PORT",
    "unix:": "names no socket, such as unix:/run/cutaway.sock",
    "unix://run/cutaway.sock": "names no socket",
    f"unix:/{'long' * 30}": "the path of a socket has 103 bytes at most",
}


@pytest.mark.parametrize("address", BAD)
def test_what_is_no_address_is_refused_in_words(address: str) -> None:
    """By the gateway, by its metrics and by clients."""
    for field in ("CUTAWAY_ADDRESS", "CUTAWAY_HTTP_ADDRESS", "metrics_address"):
        with pytest.raises(ca.InvalidArgument) as caught:
            check_addresses({field: address})
        assert BAD[address] in caught.value.message
        assert caught.value.field == field
    with pytest.raises(ca.InvalidArgument) as caught:
        ca.Client(address)
    assert BAD[address] in caught.value.message
    assert caught.value.field == "address"


@pytest.mark.parametrize(
    "address", ["dns:///gateway:50051", "ipv4:127.0.0.1:1,127.0.0.2:1", "torchserve://127.0.0.1:7070", "[::1]:50051"]
)
def test_addresses_of_clients(address: str) -> None:
    """Those of several servers, and of TorchServe."""
    ca.Client(address).close()


@contextlib.contextmanager
def taken(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Addresses that others have, or that this machine does not, with the system's words."""
    (tmp_path / "file").write_text("no socket")
    with socket.create_server(("127.0.0.1", 0)) as one, socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "taken"))
        other.listen()
        yield {
            f"127.0.0.1:{one.getsockname()[1]}": "Address already in use",
            f"0.0.0.0:{one.getsockname()[1]}": "Address already in use",
            f"localhost:{one.getsockname()[1]}": "Address already in use",
            "192.0.2.1:50051": "Cannot assign requested address",
            "no-such-host.invalid:50051": "",
            f"unix:{tmp_path / 'taken'}": "Address already in use",
            f"unix:{tmp_path / 'file'}": "it is a file, and no socket",
            f"unix:{tmp_path / 'nowhere' / 'socket'}": "No such file or directory",
        }


def test_what_is_taken_is_told_with_the_reason(tmp_path: Path) -> None:
    """Whichever door wants it, and also if two of them want the same."""
    with taken(tmp_path) as addresses:
        for address, why in addresses.items():
            with pytest.raises(ca.Unavailable) as caught:
                check_addresses({"CUTAWAY_ADDRESS": "127.0.0.1:0", "CUTAWAY_HTTP_ADDRESS": address})
            assert caught.value.message.startswith(f"cannot listen on {address}: {why}")
            assert caught.value.field == "CUTAWAY_HTTP_ADDRESS"
        assert (tmp_path / "file").read_text() == "no socket"
    with socket.create_server(("127.0.0.1", 0)) as one:
        free = f"127.0.0.1:{one.getsockname()[1]}"
    for same in (free, f"unix:{tmp_path / 'new'}"):
        with pytest.raises(ca.Unavailable, match="Address already in use"):
            check_addresses({"CUTAWAY_ADDRESS": same, "CUTAWAY_METRICS_ADDRESS": same})
        check_addresses({"CUTAWAY_ADDRESS": same})
    assert not (tmp_path / "new").exists()


def test_a_taken_address_is_told_before_models_load(tmp_path: Path) -> None:
    """Which takes minutes, and here for ever."""
    (tmp_path / "waits.py").write_text("from cutaway.adapters import Adapter\nclass Waits(Adapter):\n    while 1: 0\n")
    package(tmp_path, "tiny", f"{tmp_path / 'waits.py'}:Waits")
    command = ["serve", "--model-store", tmp_path, "--engine=embedded", "--address"]
    with taken(tmp_path) as addresses:
        for address in [*addresses, *BAD]:
            done = cutaway(*command, address)
            assert done.returncode != 0
            assert done.stderr.startswith(("BACKEND_UNAVAILABLE [CUTAWAY_ADDRESS]", "INVALID_VALUE [CUTAWAY_ADDRESS]"))


class Wide(nn.Module):
    def forward(self, x):  # type: ignore[no-untyped-def]
        return x + 1


def ipv6() -> bool:
    """Whether this machine has IPv6."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


def got(address: str, path: str) -> str:
    """What an HTTP server at an address, also of a Unix socket, replies."""
    host, _, port = address.rpartition(":")
    is_unix = host == "unix"
    connection = http.client.HTTPConnection("localhost" if is_unix else host.strip("[]"), 0 if is_unix else int(port))
    if is_unix:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(port)
    connection.request("GET", path)
    reply = connection.getresponse()
    assert reply.status == 200
    return reply.read().decode()


@pytest.mark.parametrize(
    "kind", ["unix:", "unix://", pytest.param("[::1]", marks=pytest.mark.skipif(not ipv6(), reason="no IPv6"))]
)
def test_other_kinds_of_addresses(tmp_path: Path, kind: str) -> None:
    """All doors and the metrics listen there, and clients call there. What a killed server left is no obstacle, and a
    server leaves nothing."""
    names = ("grpc", "http", "metrics")
    if kind.startswith("unix"):
        grpc, rest, metrics = (f"{kind}{tmp_path / name}" for name in names)
        for name in names:
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(str(tmp_path / name))
    else:
        grpc, rest, metrics = (f"{kind}:0" for _ in names)
    settings = Settings(http_address=rest, metrics_address=metrics)
    with serve({"wide": Wide()}, grpc, settings=settings) as served, ca.Client(served.address) as client:
        assert served.address.startswith(kind)
        result = client.inspect("wide", {"x": np.ones((1, 2), np.float32)})
        assert result.predictions["output"].tolist() == [[2.0, 2.0]]
        for address in (served.http_address, served.metrics_address):
            assert address.startswith(kind)
        plain = [address.replace("unix://", "unix:") for address in (served.http_address, served.metrics_address)]
        assert '"wide"' in got(plain[0], "/v1/models")
        assert "cutaway_calls_total" in got(plain[1], "/metrics")
    assert list(tmp_path.iterdir()) == []
