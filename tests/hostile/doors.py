"""Every door of the gateway: how bytes are sent to it, and what a reply says."""

from __future__ import annotations

import http
import http.client
import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from cutaway.client.transport import SERVICE
from cutaway.contract.wire import grpc_status
from cutaway.contract.wire.message_walk import prefix
from cutaway.server.open_inference.datatypes import SERVICE as OPEN_INFERENCE
from tests.support.serving import Server

MODEL = "digits"
PATIENCE_S = 120.0

JSON, PROTO, WEB = "application/json", "application/proto", "application/grpc-web+proto"
NPY, NPZ, FORM = "application/x-npy", "application/x-npz", "multipart/form-data; boundary=XbX"

_WRONG_CODES = ("INTERNAL", "UNKNOWN", "DATA_LOSS", "UNAVAILABLE", "internal", "unknown", "data_loss", "unavailable")


@dataclass(frozen=True)
class Door:
    """One way in.

    Attributes:
        path: of HTTP, or the method of gRPC.
        kind: the media type; empty for gRPC.
        language: what its bodies are: ``"json"``, ``"v1"``, ``"v2"``, ``"proto"``, ``"v2 proto"`` or bytes of a file.
    """

    path: str
    kind: str
    language: str


DOORS: dict[str, Door] = {
    "grpc": Door(f"/{SERVICE}/Inspect", "", "proto"),
    "grpc stream": Door(f"/{SERVICE}/InspectStream", "", "proto"),
    "connect": Door(f"/{SERVICE}/Inspect", PROTO, "proto"),
    "connect json": Door(f"/{SERVICE}/Inspect", JSON, "json"),
    "grpc-web": Door(f"/{SERVICE}/Inspect", WEB, "proto"),
    "predict": Door(f"/v1/models/{MODEL}:predict", JSON, "v1"),
    "explain": Door(f"/v1/models/{MODEL}:explain", JSON, "v1"),
    "form": Door(f"/v1/models/{MODEL}:predict", FORM, "form"),
    "npy": Door(f"/v1/models/{MODEL}:predict", NPY, "npy"),
    "npz": Door(f"/v1/models/{MODEL}:predict", NPZ, "npz"),
    "inspect": Door(f"/v1/models/{MODEL}:inspect", JSON, "json"),
    "inspect proto": Door(f"/v1/models/{MODEL}:inspect", PROTO, "proto"),
    "program": Door(f"/v1/models/{MODEL}:program", JSON, "json"),
    "v2": Door(f"/v2/models/{MODEL}/infer", JSON, "v2"),
    "v2 binary": Door(f"/v2/models/{MODEL}/infer", "application/octet-stream", "v2"),
    "v2 grpc": Door(f"/{OPEN_INFERENCE}/ModelInfer", "", "v2 proto"),
}


@dataclass(frozen=True)
class Case:
    """What one caller does to one door.

    Attributes:
        name: unique, for people.
        door: a name in ``DOORS``.
        body: makes the bytes when they are sent, since some are large.
        headers: beside the usual ones, of HTTP.
        manner: how bytes are sent: ``""``, or a name in ``_MANNERS``.
    """

    name: str
    door: str
    body: Callable[[], bytes]
    headers: Mapping[str, str] = field(default_factory=dict)
    manner: str = ""


@dataclass(frozen=True)
class Outcome:
    """What came back: the status, and whether no honest server says so."""

    said: str
    wrong: bool


def send(server: Server, case: Case) -> Outcome:
    """Sends one case, and waits for its end."""
    door, body = DOORS[case.door], case.body()
    if not door.kind:
        return _by_grpc(server, door, body)
    if case.manner:
        return _MANNERS[case.manner](server, door, body)
    framed = b"\0" + len(body).to_bytes(4, "big") + body if door.kind == WEB else body
    return _by_http(server, door, framed, case.headers)


def _by_grpc(server: Server, door: Door, body: bytes) -> Outcome:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    options.append(("grpc.max_send_message_length", -1))
    with grpc.insecure_channel(server.address, options=options) as channel:
        method: Any = channel.unary_stream(door.path) if "Stream" in door.path else channel.unary_unary(door.path)
        try:
            reply = method(body, timeout=PATIENCE_S)
            _ = list(reply) if "Stream" in door.path else reply
        except grpc.RpcError as failure:
            told: Any = failure
            code, details, trailers = told.code().value[0], told.details(), told.trailing_metadata()
            reason = grpc_status.decode(code, details, trailers).reason
            return Outcome(f"{told.code().name} {reason}", told.code().name in (*_WRONG_CODES, "DEADLINE_EXCEEDED"))
        return Outcome("OK", wrong=False)


def _by_http(server: Server, door: Door, body: bytes, headers: Mapping[str, str]) -> Outcome:
    connection = http.client.HTTPConnection(server.http_address, timeout=PATIENCE_S)
    try:
        connection.request("POST", door.path, body, {"content-type": door.kind, **headers})
        reply = connection.getresponse()
        return _read(reply.status, dict(reply.headers), reply.read())
    except (http.client.HTTPException, OSError) as failure:
        # A refusal that comes before the body is sent may close the connection below the caller's hands.
        refused = isinstance(failure, ConnectionError) and len(body) > _SENT_AT_ONCE
        return Outcome(type(failure).__name__, wrong=not refused)
    finally:
        connection.close()


_SENT_AT_ONCE = 1 << 17


def _read(status: int, headers: Mapping[str, str], body: bytes) -> Outcome:
    lower = {key.lower(): value for key, value in headers.items()}
    said = ""
    if "json" in lower.get("content-type", ""):
        head = int(lower.get("inference-header-content-length", len(body)))
        try:
            document = json.loads(body[:head])
        except ValueError:
            return Outcome(f"{status} no JSON, but {lower}: {body[:40]!r}", wrong=True)
        said = str(document.get("reason") or document.get("code") or "") if isinstance(document, dict) else ""
    web = lower.get("grpc-status") or _trailer(body)
    wrong = (
        (status >= 500 and status != http.HTTPStatus.NOT_IMPLEMENTED)
        or said in _WRONG_CODES
        or web in ("2", "13", "14", "15")
    )
    return Outcome(f"{status} {said}{web}".strip(), wrong)


def _trailer(body: bytes) -> str:
    found = body.rfind(b"grpc-status:")
    return body[found + 12 :].split(b"\r\n")[0].strip().decode() if found >= 0 else ""


def _announced(server: Server, door: Door, lines: str) -> socket.socket:
    host, _, port = server.http_address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    connection.sendall(
        f"POST {door.path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {door.kind}\r\n{lines}\r\n".encode()
    )
    return connection


def _answered(connection: socket.socket, wait_s: float) -> Outcome:
    """What came within a while; a closed or silent connection is what a caller who breaks off deserves."""
    connection.settimeout(wait_s)
    try:
        line = connection.recv(1 << 16).split(b"\r\n")[0].decode(errors="replace")
    except TimeoutError:
        return Outcome("silent", wrong=False)
    except OSError:
        return Outcome("closed", wrong=False)
    status = line.split(" ")[1] if line.startswith("HTTP/") else "closed"
    return Outcome(status, wrong=status.startswith("5"))


def _left(server: Server, door: Door, body: bytes) -> Outcome:
    """The connection closes in the middle of the body."""
    with _announced(server, door, f"Content-Length: {len(body)}\r\n") as connection:
        connection.sendall(body[: len(body) // 2])
    return Outcome("left", wrong=False)


def _longer(server: Server, door: Door, body: bytes) -> Outcome:
    """More is announced than comes."""
    with _announced(server, door, f"Content-Length: {len(body) + 9}\r\n") as connection:
        connection.sendall(body)
        return _answered(connection, 0.2)


def _shorter(server: Server, door: Door, body: bytes) -> Outcome:
    """More comes than is announced: the rest is read as a request of its own."""
    with _announced(server, door, f"Content-Length: {max(0, len(body) - 9)}\r\n") as connection:
        connection.sendall(body)
        return _answered(connection, PATIENCE_S)


def _no_number(server: Server, door: Door, body: bytes) -> Outcome:
    with _announced(server, door, f"Content-Length: {'9' * 400}\r\n") as connection:
        return _answered(connection, PATIENCE_S)


def _two_lengths(server: Server, door: Door, body: bytes) -> Outcome:
    lines = f"Content-Length: {len(body)}\r\nTransfer-Encoding: chunked\r\n"
    with _announced(server, door, lines) as connection:
        connection.sendall(body)
        return _answered(connection, 1.0)


def _chunks(server: Server, door: Door, body: bytes) -> Outcome:
    """The body arrives byte by byte at first, in chunks."""
    with _announced(server, door, "Transfer-Encoding: chunked\r\n") as connection:
        for place in range(min(64, len(body))):
            connection.sendall(b"1\r\n" + body[place : place + 1] + b"\r\n")
        if rest := body[64:]:
            connection.sendall(b"%x\r\n%s\r\n" % (len(rest), rest))
        connection.sendall(b"0\r\n\r\n")
        return _answered(connection, PATIENCE_S)


def _bad_chunk(server: Server, door: Door, body: bytes) -> Outcome:
    with _announced(server, door, "Transfer-Encoding: chunked\r\n") as connection:
        connection.sendall(b"fffffffffffffffff\r\n" + body[:1000] + b"\r\n")
        return _answered(connection, 1.0)


def _head(server: Server, door: Door, body: bytes) -> Outcome:
    """A header that has no end."""
    with _announced(server, door, "X-Long: " + "a" * 1_000_000) as connection:
        return _answered(connection, 1.0)


_MANNERS: dict[str, Callable[[Server, Door, bytes], Outcome]] = {
    "left": _left,
    "longer": _longer,
    "shorter": _shorter,
    "no number": _no_number,
    "two lengths": _two_lengths,
    "chunks": _chunks,
    "bad chunk": _bad_chunk,
    "head": _head,
}
MANNERS = tuple(_MANNERS)


def delimited(number: int, data: bytes) -> bytes:
    """A field of a message in protobuf."""
    return prefix(number, len(data)) + data
