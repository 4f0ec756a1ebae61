"""Connections by HTTP: what is slow, too large, or no HTTP takes nobody else's time, and the server stays."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import trustme
from torch import Tensor, nn

import cutaway as ca
from cutaway.client.request_builder import build_request
from cutaway.client.transport import SERVICE
from cutaway.contract.wire.requests import encode
from cutaway.gateway import serve
from cutaway.server.embedded import Served
from cutaway.server.http.server import MAX_HEAD_BYTES, MOST_PIPELINED
from cutaway.server.settings import Settings
from cutaway.v1 import inspection_service_pb2
from tests.support.doors import post
from tests.support.waiting import until

RECEIVE_S = 1.0
X = np.ones((1, 4), np.float32)
HEAD = "POST /v1/models/net:predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
INSPECT = f"POST /{SERVICE}/Inspect HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


class Slow(nn.Module):
    """Takes longer than a connection may be idle."""

    def forward(self, input: Tensor) -> Tensor:
        time.sleep(2.5 * RECEIVE_S)
        return input.float()


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    settings = Settings(http_address="127.0.0.1:0", receive_timeout_s=RECEIVE_S, idle_timeout_s=RECEIVE_S)
    with serve({"net": nn.Linear(4, 2), "echo": nn.Identity(), "slow": Slow()}, settings=settings) as running:
        yield running


@contextlib.contextmanager
def connected(server: Served) -> Iterator[socket.socket]:
    host, port = server.http_address.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        yield connection


def everything(connection: socket.socket) -> bytes:
    """All that arrives until the server ends the connection."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


SLOW = {
    "nothing": b"",
    "half a head": HEAD.encode(),
    "half a body": f"{HEAD}Content-Length: 100\r\n\r\n{{".encode(),
    "half a body for connect": f"{INSPECT}Content-Length: 100\r\n\r\n{{".encode(),
    "chunks without an end": f"{HEAD}Transfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n".encode(),
}


@pytest.fixture(scope="module")
def slow(server: Served) -> Iterator[dict[str, socket.socket]]:
    """All of them at once, so that their limits pass at the same time."""
    with contextlib.ExitStack() as stack:
        connections = {what: stack.enter_context(connected(server)) for what in SLOW}
        for what, connection in connections.items():
            connection.sendall(SLOW[what])
        yield connections


@pytest.mark.parametrize("what", SLOW)
def test_who_sends_too_slowly_is_told_and_left(server: Served, slow: dict[str, socket.socket], what: str) -> None:
    said = everything(slow[what])
    assert b"DEADLINE_EXCEEDED" in said or b"deadline_exceeded" in said or "body" not in what
    still_answers(server)


LENGTH = "Content-Length: 1000000\r\n\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n\r\n"
DRIPPED = {
    "a body after 401": (f"{HEAD}{LENGTH}", b" "),
    "a body for connect after 401": (f"{INSPECT}{LENGTH}", b"{"),
    "chunks after 401": (f"{HEAD}{CHUNKED}", b"1\r\na\r\n"),
    "trailers after 401": (f"{HEAD}{CHUNKED}0\r\n", b"X: a\r\n"),
    "a body for a page": (f"GET /docs HTTP/1.1\r\nHost: 127.0.0.1\r\n{LENGTH}", b" "),
    "a body for another host": (f"GET / HTTP/1.1\r\nHost: example\r\n{LENGTH}", b" "),
    "a body for a health check": (f"POST /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n{LENGTH}", b" "),
    "empty lines": ("GET /docs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"\r\n"),
    "one byte of a body, then nothing": (f"{HEAD}{LENGTH} ", b""),
    "a body after its reply, then nothing": (f"{HEAD}Content-Length: 2\r\n\r\n", b"{}"),
}


@pytest.fixture(scope="module")
def dripped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, socket.socket]]:
    """Connections of callers without a token, each with the first part of a request."""
    file = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    file.write_text("[tokens]\n")
    settings = Settings(http_address="127.0.0.1:0", receive_timeout_s=RECEIVE_S, idle_timeout_s=RECEIVE_S, tokens=file)
    with serve({"net": nn.Linear(4, 2)}, settings=settings) as server, contextlib.ExitStack() as stack:
        connections = {what: stack.enter_context(connected(server)) for what in DRIPPED}
        for what, (head, _) in DRIPPED.items():
            connections[what].sendall(head.encode())
        yield connections


@pytest.mark.parametrize("what", DRIPPED)
def test_who_drips_after_the_reply_is_left(dripped: dict[str, socket.socket], what: str) -> None:
    """Whatever arrives: only a whole request keeps a connection."""
    connection, (_, drop) = dripped[what], DRIPPED[what]
    once = what.endswith("then nothing")
    connection.settimeout(RECEIVE_S / 10)

    def ended() -> bool:
        nonlocal drop
        try:
            connection.sendall(drop)
            drop = b"" if once else drop
            return connection.recv(1 << 16) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    until(ended)


def test_connections_have_a_greatest_number() -> None:
    """One more is refused, as long as the others are there."""
    with serve({"net": nn.Linear(4, 2)}, settings=Settings(http_address="127.0.0.1:0", http_connections=3)) as server:
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(connected(server)).sendall(HEAD.encode())
            with connected(server) as further:
                assert everything(further).startswith(b"HTTP/1.1 503 ")
        until(lambda: post(f"http://{server.http_address}/v1/models", None, {})[0] == 200)


def test_the_handshake_of_tls_has_an_end(tmp_path: Path) -> None:
    """A caller who never begins it, or stops within it, is left."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    settings = Settings(
        http_address="127.0.0.1:0",
        receive_timeout_s=RECEIVE_S,
        tls_certificate=tmp_path / "cert.pem",
        tls_key=tmp_path / "key.pem",
    )
    with serve({"net": nn.Linear(4, 2)}, settings=settings) as server:
        begin = time.monotonic()
        for sent in (b"", b"\x16\x03\x01\x02\x00\x01"):
            with connected(server) as connection:
                connection.sendall(sent)
                assert everything(connection) == b""
        assert time.monotonic() - begin < 50  # asyncio's own limit is a minute for each


def test_a_request_has_one_host_and_one_limit(server: Served) -> None:
    """A proxy may have looked at the other one; each reply keeps itself out of other sites' pages."""
    for more, status in (
        ("", "200"),
        ("Host: 127.0.0.1\r\n", "400"),
        ("HOST: example\r\n", "400"),
        ("X-Timeout-Ms: 1000\r\n", "200"),
        ("X-Timeout-Ms: 1000\r\nx-timeout-ms: 1\r\n", "400"),
    ):
        with connected(server) as connection:
            connection.sendall(
                f"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n{more}Connection: close\r\n\r\n".encode()
            )
            reply = everything(connection)
        assert reply.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"cross-origin-resource-policy: same-origin\r\n" in reply


def test_a_connection_without_a_further_request_is_ended(server: Served) -> None:
    with connected(server) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert everything(connection).endswith(b'{"models":["echo","net","slow"]}')


@pytest.mark.parametrize("streamed", [False, True])
def test_who_reads_nothing_is_left(server: Served, streamed: bool) -> None:
    """A large reply waits for its reader no longer than a connection may be idle, whole or in pieces."""
    large = np.ones((1, 4 << 20), np.float32)
    if streamed:
        request = inspection_service_pb2.InspectStreamRequest(request=encode(build_request("echo", {"input": large})))
        data = request.SerializeToString()
        path, kind, body = f"/{SERVICE}/InspectStream", "connect+proto", struct.pack(">BI", 0, len(data)) + data
    else:
        path, kind, body = (
            f"/{SERVICE}/Inspect",
            "proto",
            encode(build_request("echo", {"input": large})).SerializeToString(),
        )
    with connected(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(_request(path, body, f"application/{kind}").replace(b"Connection: close\r\n", b""))
        until(lambda: _ended(connection))
    still_answers(server)


@pytest.mark.slow
def test_who_reads_slowly_gets_everything(server: Served) -> None:
    """For much longer than a connection may be idle."""
    request = encode(build_request("echo", {"input": np.ones((1, 8 << 20), np.float32)})).SerializeToString()
    with connected(server) as connection:
        connection.sendall(_request(f"/{SERVICE}/Inspect", request, "application/proto"))
        got = 0
        for part in range(1, 9):
            time.sleep(RECEIVE_S / 3)
            while got < part * (3 << 20):
                got += len(connection.recv(1 << 18)) or pytest.fail(f"ended after {got} bytes")
        assert got + len(everything(connection)) > 32 << 20


@pytest.mark.slow
def test_who_has_read_a_large_reply_is_not_cut_later(server: Served) -> None:
    """The next call, already sent, takes twice as long as a connection may be idle."""
    large = encode(build_request("echo", {"input": np.ones((1, 2 << 20), np.float32)})).SerializeToString()
    sent = _request(f"/{SERVICE}/Inspect", large, "application/proto").replace(b"Connection: close\r\n", b"")
    body = b'{"instances": [[1, 2]]}'
    with connected(server) as connection:
        connection.sendall(sent + _request("/v1/models/slow:predict", body, "application/json"))
        got = everything(connection)
    assert len(got) > 8 << 20
    assert got.endswith(b"}")
    assert b'{"predictions": [[1.0, 2.0]]' in got[-2000:]


def _ended(connection: socket.socket) -> bool:
    """Whether the server's end of a connection is closed, though nothing of the reply was read."""
    ours = connection.getsockname()
    found = [each.status for each in psutil.Process().net_connections() if each.raddr == ours]
    return psutil.CONN_ESTABLISHED not in found


def test_a_head_has_an_end() -> None:
    """Headers without end fill no memory: the connection ends long before the time for a head does."""
    with serve(
        {"net": nn.Linear(4, 2)}, settings=Settings(http_address="127.0.0.1:0", receive_timeout_s=3600)
    ) as patient:
        with connected(patient) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(HEAD.encode() + b"X-More: " + b"x" * (MAX_HEAD_BYTES + (1 << 20)))
            assert everything(connection)[:12] in (b"HTTP/1.1 400", b"")
        still_answers(patient)


def of_size(size: int, line: str) -> bytes:
    """A request without a body, whose head has ``size`` bytes, in the line, in names and in values of headers."""
    head = f"{line}Host: 127.0.0.1\r\nConnection: close\r\n".encode()
    head += b"".join(b"A%d: 1\r\n" % number for number in range(100))
    return head + b"X-More: %s\r\n\r\n" % (b"x" * (size - len(head) - 12))


LINES = {"short": "GET /docs HTTP/1.1\r\n", "long": f"GET /docs?{'x' * 50_000} HTTP/1.1\r\n"}


@pytest.mark.parametrize("before", [b"", b"GET /docs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"], ids=["first", "second"])
@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("part", [1 << 20, 4096])
def test_a_head_has_the_stated_size(server: Served, part: int, line: str, before: bytes) -> None:
    """To the byte, in however many parts it arrives, and also behind another request."""
    statuses = []
    for size in (MAX_HEAD_BYTES, MAX_HEAD_BYTES + 1):
        with connected(server) as connection, contextlib.suppress(ConnectionError):
            sent = before + of_size(size, LINES[line])
            for start in range(0, len(sent), part):
                connection.sendall(sent[start : start + part])
            said = everything(connection).rpartition(b"HTTP/1.1 ")[2]
            statuses.append(said[:3])
    assert statuses == [b"200", b"400"]
    assert said.endswith(b"the head of a request has at most %d bytes" % MAX_HEAD_BYTES)


CHUNK = b"5\r\n[0.5]\r\n"
TRAILED = {
    "many": b"".join(b"a%d: 1\r\n" % number for number in range(MAX_HEAD_BYTES)),
    "one without an end": b"a: " + b"1" * (4 * MAX_HEAD_BYTES),
}


@pytest.mark.parametrize("what", TRAILED)
def test_trailers_have_an_end(what: str) -> None:
    """They come after the body, so that no limit of the head or of the body counts them."""
    settings = Settings(http_address="127.0.0.1:0", receive_timeout_s=3600)
    with serve({"net": nn.Linear(4, 2)}, settings=settings) as patient:
        with connected(patient) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(f"{HEAD}{CHUNKED}".encode() + CHUNK + b"0\r\n")
            for _ in range(100):
                connection.sendall(TRAILED[what])
            pytest.fail("a hundred times the most bytes of a head were taken")
        still_answers(patient)


def test_trailers_of_one_request_do_not_count_for_the_next(server: Served) -> None:
    """Each may have as much as the head of a request."""
    body = b'{"instances": [[1.0, 2.0, 3.0, 4.0]]}'
    trailer = b"a: " + b"1" * (MAX_HEAD_BYTES * 3 // 4)
    with connected(server) as connection:
        for more in ("", "Connection: close\r\n"):
            for part in (f"{HEAD}{more}{CHUNKED}{len(body):x}\r\n".encode(), body + b"\r\n0\r\n", trailer):
                connection.sendall(part)
                time.sleep(RECEIVE_S / 10)  # so that it is read before what follows
            connection.sendall(b"\r\n\r\n")
        said = everything(connection)
    assert said.count(b"HTTP/1.1 200") == 2


def test_a_trailer_is_no_header(server: Served) -> None:
    """Whoever stands before the service decides by the head (RFC 9110, 6.5.1)."""
    body = b'{"instances": [[1.0, 2.0, 3.0, 4.0]]}'
    trailers = b"x-timeout-ms: 1\r\naccept: application/x-npz\r\n\r\n"
    chunks = b"%x\r\n%s\r\n0\r\n%s" % (len(body), body, trailers)
    with connected(server) as connection:
        connection.sendall(f"{HEAD}Connection: close\r\n{CHUNKED}".encode() + chunks)
        said = everything(connection)
    assert said.startswith(b"HTTP/1.1 200")
    assert b"application/json" in said.partition(b"\r\n\r\n")[0]


def test_small_chunks_are_no_trailers(server: Served) -> None:
    """A body in chunks of a byte has many times its bytes of framing."""
    row = b'{"instances": [[1.0, 2.0, 3.0, 4.0]]}'
    body = row + b" " * (2 * MAX_HEAD_BYTES)
    with connected(server) as connection:
        connection.sendall(f"{HEAD}Connection: close\r\n{CHUNKED}".encode())
        connection.sendall(b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
        assert everything(connection).startswith(b"HTTP/1.1 200")


LAST = b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
UPGRADE = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
ROW = b'{"instances": [[1.0, 2.0, 3.0, 4.0]]}'
BODIES = {
    "of a length": b"Content-Length: %d\r\n\r\n%s" % (len(ROW), ROW),
    "in chunks": b"Transfer-Encoding: chunked\r\n\r\n7\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n"
    % (ROW[:7], len(ROW) - 7, ROW[7:]),
}


@pytest.mark.parametrize("apart", ["whole", "the head first", "byte by byte"])
@pytest.mark.parametrize("what", BODIES)
def test_who_asks_for_another_protocol_is_answered_in_this_one(server: Served, what: str, apart: str) -> None:
    """As Java's HTTP client asks by default, and curl with ``--http2``; its body is no request, the next one is."""
    one = f"{HEAD}{UPGRADE}".encode() + BODIES[what]
    with connected(server) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sent = one + one + LAST
        if apart == "whole":
            connection.sendall(sent)
        elif apart == "byte by byte":
            for byte in sent:
                connection.sendall(bytes([byte]))
        else:
            head, _, rest = sent.partition(b"\r\n\r\n")
            connection.sendall(head + b"\r\n\r\n")
            time.sleep(RECEIVE_S / 10)
            connection.sendall(rest)
        said = everything(connection)
    assert said.count(b"HTTP/1.1 200") == 3
    assert said.count(b'"predictions"') == 2
    assert said.endswith(b'{"models":["echo","net","slow"]}')


@pytest.mark.slow
@pytest.mark.parametrize("behind", [b"", LAST + b"and more"], ids=["nothing behind it", "more than requests behind it"])
def test_a_long_call_that_asks_for_another_protocol_is_answered(server: Served, behind: bytes) -> None:
    """It takes longer than a head may, and what its caller sent behind the last request ends nothing."""
    with connected(server) as connection:
        connection.sendall(HEAD.replace("net", "slow").encode() + UPGRADE.encode() + BODIES["of a length"] + behind)
        said = everything(connection)
    assert said.startswith(b"HTTP/1.1 200")
    assert said.count(b"HTTP/1.1 200") == said.count(b"HTTP/1.1") == (2 if behind else 1)


def test_an_upgrade_without_a_body_has_none(server: Served) -> None:
    """What follows is the next request; a body that is a request is none."""
    inner = b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with connected(server) as connection:
        connection.sendall(f"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n{UPGRADE}\r\n".encode())
        connection.sendall(f"{HEAD}{UPGRADE}Content-Length: {len(inner)}\r\n\r\n".encode() + inner)
        connection.sendall(inner.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        said = everything(connection)
    assert [part[:3] for part in said.split(b"HTTP/1.1 ")[1:]] == [b"200", b"400", b"200"]


def test_few_requests_wait_on_a_connection(server: Served) -> None:
    """A caller who reads nothing would otherwise queue thousands with each packet."""
    one = b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with connected(server) as connection:
        connection.sendall(one * MOST_PIPELINED)
        answers = b""
        while answers.count(b"HTTP/1.1 200") < MOST_PIPELINED:
            part = connection.recv(1 << 16)
            assert part
            answers += part
    with connected(server) as connection:
        connection.sendall(one * 1000)
        said = everything(connection)
    assert said.count(b"HTTP/1.1 200") <= MOST_PIPELINED + 1
    still_answers(server)


def test_who_goes_away_ends_the_call(server: Served) -> None:
    """A call whose caller has gone leaves no queue behind."""
    for _ in range(20):
        with connected(server) as connection:
            body = b'{"instances": [[1, 2, 3, 4]]}'
            connection.sendall(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    still_answers(server)


@pytest.mark.parametrize("count", [2000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_hostile_requests_end_in_no_fault(server: Served, count: int) -> None:
    """Bytes of requests changed, cut and repeated at random: the server answers all that is HTTP, never with 500, and
    goes on."""
    statuses = mutated(server, count, seed=1)
    print({status: statuses.count(status) for status in sorted(set(statuses))})
    assert not [status for status in statuses if status.startswith("5") and status not in ("501", "503", "504")]
    assert "200" in statuses
    still_answers(server)


def mutated(server: Served, count: int, seed: int) -> list[str]:
    """The statuses of ``count`` mutated requests; empty where the server only ended the connection."""
    dice = random.Random(seed)
    return [_status(server, _mutated(dice, dice.choice(VALID))) for _ in range(count)]


def _request(path: str, body: bytes, kind: str, more: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nConnection: close\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


VALID = [
    _request("/v1/models/net:predict", b'{"instances": [[1, 2, 3, 4]]}', "application/json"),
    _request("/v1/models/net:explain", b'{"instances": [[1, 2, 3, 4]], "method": "saliency"}', "application/json"),
    _request("/v1/models/net:inspect", b'{"tensors": {"byName": {}}}', "application/json"),
    _request(f"/{SERVICE}/ListModels", b"{}", "application/json"),
    _request(f"/{SERVICE}/GetModel", b"\n\x03net", "application/proto", "Connect-Timeout-Ms: 9999\r\n"),
    _request(f"/{SERVICE}/InspectStream", b"\0\0\0\0\0", "application/connect+proto"),
    _request(f"/{SERVICE}/InspectStream", b"\0\0\0\0\2{}", "application/connect+json"),
    _request(f"/{SERVICE}/Inspect", b"\0\0\0\0\0", "application/grpc-web+proto", "Grpc-Timeout: 9S\r\n"),
    _request(
        "/v1/models/net:predict",
        b'--b\r\nContent-Disposition: form-data; name="instances"; filename="x"\r\n\r\n1 2\r\n--b--\r\n',
        "multipart/form-data; boundary=b",
    ),
    b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    b"GET /v1/models/net?operators HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
]


def _mutated(dice: random.Random, request: bytes) -> bytes:
    data = bytearray(request)
    for _ in range(dice.choice((0, 1, 1, 2, 8))):
        place = dice.randrange(len(data))
        kind = dice.randrange(5)
        if kind == 0:
            data[place] = dice.randrange(256)
        elif kind == 1:
            del data[place : place + dice.randrange(1, 20)]
        elif kind == 2:
            data[place:place] = dice.randbytes(dice.randrange(1, 20))
        elif kind == 3:
            data[place:place] = data[place : place + 20] * dice.randrange(1, 5)
        else:
            data[place:place] = dice.choice((b"\r\n", b"\0", b"%00", b"\xff", b"9" * 30, b"-1", b"{", b"[" * 50, b'"'))
        data = data or bytearray(b"x")
    return bytes(data)


def _status(server: Served, request: bytes) -> str:
    with connected(server) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        said = everything(connection)
    return said[9:12].decode("latin1")


def still_answers(server: Served) -> None:
    """Others are answered, by each protocol, while and after somebody misbehaves."""
    with ca.Client(server.http_address, transport="connect") as client:
        assert client.inspect("net", X).predictions["output"].shape == (1, 2)
    assert post(f"http://{server.http_address}/v1/models", None, {})[0] == 200


def test_others_are_answered_meanwhile(server: Served) -> None:
    """A hundred callers who send half of a request hold nobody up."""
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(connected(server)).sendall(SLOW["half a body"])
        still_answers(server)
