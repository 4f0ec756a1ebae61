"""Connections that only hold on to the server are ended, and calls that are only long are not."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection
from torch import Tensor, nn

import cutaway as ca
from cutaway.client.transport import SERVICE
from cutaway.gateway import serve
from cutaway.server.settings import Settings
from tests.support.waiting import until

LIMIT_S = 1.0
X = {"x": np.ones((1, 3), np.float32)}

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_HEADERS, ACK = 4, 1
MAX_CONCURRENT_STREAMS = 3


class Slow(nn.Module):
    """Takes longer than any limit of these tests on a connection."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(2 * LIMIT_S)
        return x


class Quick(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    settings = Settings(receive_timeout_s=LIMIT_S, idle_timeout_s=LIMIT_S)
    with serve({"slow": Slow(), "quick": Quick()}, settings=settings) as server:
        yield server.address


def frame(kind: int, flags: int = 0, stream: int = 0, content: bytes = b"") -> bytes:
    """One frame of HTTP/2, RFC 9113."""
    return len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + content


def header(name: bytes, value: bytes) -> bytes:
    """A header of its own, as HPACK has one that is in no table: RFC 7541."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def opened(stream: int, method: str = f"/{SERVICE}/Inspect") -> bytes:
    """The begin of a gRPC call."""
    fields = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "x", "te": "trailers"}
    fields["content-type"] = "application/grpc"
    block = b"".join(header(name.encode(), value.encode()) for name, value in fields.items())
    return frame(HEADERS, END_HEADERS, stream, block)


HALF = (1 << 20).to_bytes(5, "big") + b"half"
"""A message of a mebibyte, of which four bytes are sent."""


class Peer:
    """A client by hand, which answers pings and settings like an honest one, and keeps the frames that it gets."""

    def __init__(self, address: str, *sent: bytes, answers: bool = True) -> None:
        self._answers = answers
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self.frames: list[tuple[int, int, bytes]] = []
        self.closed = False
        if sent:
            self.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS) + b"".join(sent))
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def _read(self) -> None:
        try:
            with self._socket.makefile("rb") as arriving:
                while begin := arriving.read(9):
                    content = arriving.read(int.from_bytes(begin[:3], "big"))
                    self.frames.append((begin[3], int.from_bytes(begin[5:], "big"), content))
                    if self._answers and begin[3] in (SETTINGS, PING) and not begin[4] & ACK:
                        self.send(frame(begin[3], ACK, 0, content if begin[3] == PING else b""))
        except OSError:
            pass
        self.closed = True

    def settings(self) -> dict[int, int]:
        """Of the server."""
        content = next(content for kind, _, content in self.frames if kind == SETTINGS)
        pairs = (content[start : start + 6] for start in range(0, len(content), 6))
        return {int.from_bytes(pair[:2], "big"): int.from_bytes(pair[2:], "big") for pair in pairs}

    def ended(self) -> set[int]:
        """The streams that the server has ended: by trailers, or by a reset."""
        last = {RST_STREAM: 0, HEADERS: 1}
        return {stream for kind, stream, _ in self.frames if kind in last}


IDLE: dict[str, tuple[tuple[bytes, ...], bool]] = {
    "silent": ((), False),
    "half a header": ((opened(1)[:20],), False),
    "no call": ((b"",), True),
    "no request": ((opened(1),), True),
    "half a request": ((opened(1), frame(DATA, 0, 1, HALF)), True),
    "half a request for a stream": ((opened(1, f"/{SERVICE}/InspectStream"), frame(DATA, 0, 1, HALF)), True),
    "half a request for health": ((opened(1, f"/{health.SERVICE_NAME}/Check"), frame(DATA, 0, 1, HALF)), True),
    "half a request for changes of health": (
        (opened(1, f"/{health.SERVICE_NAME}/Watch"), frame(DATA, 0, 1, HALF)),
        True,
    ),
    "half a request for reflection": (
        (opened(1, f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"), frame(DATA, 0, 1, HALF)),
        True,
    ),
}
"""What a client sends before it does nothing, and whether it answers pings."""


@pytest.fixture(scope="module")
def idle(address: str) -> Iterator[dict[str, Peer]]:
    """All of them at once, so that their limits pass at the same time."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(Peer(address, *sent, answers=answers)) for name, (sent, answers) in IDLE.items()
        }


@pytest.mark.parametrize("name", list(IDLE))
def test_a_connection_that_does_nothing_is_ended(address: str, idle: dict[str, Peer], name: str) -> None:
    """However far it went, and although it answers pings, where it can; others are served meanwhile."""
    with ca.Client(address) as client:
        while not idle[name].closed:
            client.inspect("quick", X)
            time.sleep(0.05)
        assert client.inspect("quick", X).predictions


def test_a_request_that_comes_in_pieces_has_an_end(address: str) -> None:
    """A byte now and then does not start the time again."""
    with Peer(address, opened(1), frame(DATA, 0, 1, HALF)) as peer:

        def done() -> bool:
            if 1 not in peer.ended():
                peer.send(frame(DATA, 0, 1, b"."))
            return 1 in peer.ended()

        until(done, 0.1)


def test_a_request_that_is_too_large_is_refused_by_its_first_bytes(address: str) -> None:
    """It takes no memory: gRPC before 1.82.2 kept a gibibyte, and then refused it."""
    with Peer(address, opened(1), frame(DATA, 0, 1, (1 << 30).to_bytes(5, "big"))) as peer:
        until(lambda: 1 in peer.ended())
        assert any(b"larger than max" in content for _, stream, content in peer.frames if stream == 1)


def test_a_request_is_not_unpacked_beyond_the_limit() -> None:
    """Sixty kilobytes that unpack to 64 MiB: gRPC before 1.82.2 unpacked them all, and then refused them by size."""
    size = 64 << 20
    settings = Settings(max_message_bytes=1 << 20)
    with ExitStack() as stack:
        server = stack.enter_context(serve({"quick": Quick()}, settings=settings))
        channel = stack.enter_context(grpc.insecure_channel(server.address))
        inspect: Any = channel.unary_unary(f"/{SERVICE}/Inspect")
        caught = stack.enter_context(pytest.raises(grpc.RpcError))
        inspect(bytes(size), compression=grpc.Compression.Gzip)
    failure: Any = caught.value
    assert failure.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(size) not in failure.details()


@pytest.mark.slow
def test_a_connection_has_no_more_streams_than_allowed(address: str) -> None:
    """Ten thousand half requests: the server says how many it takes, refuses the others, and ends those that it took;
    another caller is served all the while."""
    with ExitStack() as stack:
        peer = stack.enter_context(Peer(address, b""))
        client = stack.enter_context(ca.Client(address))
        until(lambda: any(kind == SETTINGS for kind, _, _ in peer.frames))
        assert peer.settings()[MAX_CONCURRENT_STREAMS] == 1024
        try:
            for stream in range(1, 20_000, 2):
                peer.send(opened(stream) + frame(DATA, 0, stream, HALF))
                if stream % 1000 == 1:
                    client.inspect("quick", X)
        except OSError:  # the server has had enough
            pass
        while not peer.closed:
            client.inspect("quick", X)
            time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_a_long_call_outlives_the_limits(address: str, stream: bool) -> None:
    """Also on a connection whose request before it was long ago."""
    with ca.Client(address) as client:
        for model in ("quick", "slow", "quick"):
            assert client.inspect(model, X, stream=stream).predictions
