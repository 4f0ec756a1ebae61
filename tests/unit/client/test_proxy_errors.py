"""What a proxy between client and server refuses is an error of the same kind as what the server refuses."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc
import numpy as np
import pytest

import cutaway as ca
from cutaway.contract.errors import Reason
from tests.support.grpc_server import serving_methods

X = {"x": np.ones((1, 2), np.float32)}


@contextmanager
def speaking_grpc(code: grpc.StatusCode) -> Iterator[str]:
    """A proxy that knows gRPC, and refuses every call with a bare status."""

    def refuse(_: bytes, context: grpc.ServicerContext) -> NoReturn:
        context.abort(code, "RBAC: access denied")

    def refuse_stream(_: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield refuse(_, context)

    methods: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(refuse) for name in ("Inspect", "ListModels", "GetModel")
    }
    methods["InspectStream"] = grpc.unary_stream_rpc_method_handler(refuse_stream)
    with serving_methods(methods) as address:
        yield address


@contextmanager
def speaking_http(status: str) -> Iterator[str]:
    """A proxy that knows no gRPC: HTTP/2, and a status of its own to every request."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=_answer, args=(connection, status), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


_SETTINGS, _HEADERS = 4, 1
_ACK, _END = 0x1, 0x5  # of the stream, and of its headers


def _answer(connection: socket.socket, status: str) -> None:
    with connection, connection.makefile("rwb") as stream:
        stream.read(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
        stream.write(_frame(_SETTINGS, 0, 0))
        stream.flush()
        while head := stream.read(9):
            stream.read(int.from_bytes(head[:3], "big"))
            kind, flags, number = head[3], head[4], int.from_bytes(head[5:], "big")
            if kind == _SETTINGS and not flags & _ACK:
                stream.write(_frame(_SETTINGS, _ACK, 0))
            if kind == _HEADERS:
                stream.write(_frame(_HEADERS, _END, number, b"\x08" + bytes([len(status)]) + status.encode()))
            stream.flush()


def _frame(kind: int, flags: int, number: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + number.to_bytes(4, "big") + payload


def refusals(address: str) -> Iterator[ca.CutawayError]:
    """What becomes of every kind of call."""

    async def awaited(stream: bool) -> None:
        async with ca.AsyncClient(address, timeout=20) as client:
            await client.inspect("net", X, stream=stream)

    with ca.Client(address, timeout=20) as client:
        for stream in (False, True):
            for call in (lambda s: client.inspect("net", X, stream=s), lambda s: asyncio.run(awaited(s))):
                with pytest.raises(ca.CutawayError) as caught:
                    call(stream)
                yield caught.value
        with pytest.raises(ca.CutawayError) as caught:
            client.list_models()
        yield caught.value


def check(address: str, kind: type[ca.CutawayError], reason: Reason) -> None:
    for refusal in refusals(address):
        assert type(refusal) is kind
        assert refusal.reason == reason
        assert refusal.message


KINDS = [
    (grpc.StatusCode.UNAUTHENTICATED, "401", ca.Unauthenticated, Reason.TOKEN_REQUIRED),
    (grpc.StatusCode.PERMISSION_DENIED, "403", ca.PermissionDenied, Reason.SCOPE_MISSING),
]


@pytest.mark.parametrize(("code", "status", "kind", "reason"), KINDS, ids=["401", "403"])
def test_a_refusal_of_a_proxys_is_an_error_with_a_type(
    code: grpc.StatusCode, status: str, kind: type[ca.CutawayError], reason: Reason
) -> None:
    """A caller whom a proxy does not know, or does not let through, learns it by the exception's class and reason, and
    not as a fault of the server's own: in gRPC's words and in HTTP's, with both clients, in both ways."""
    with speaking_grpc(code) as address:
        check(address, kind, reason)
    with speaking_http(status) as address:
        check(address, kind, reason)
