"""A server that lies, or a proxy that refuses, costs its client an error with a type; never its memory."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc
import numpy as np
import pytest

import cutaway as ca
from cutaway.contract.errors import Reason
from cutaway.contract.wire import chunks
from cutaway.v1 import inspection_pb2, inspection_service_pb2, tensor_pb2
from tests.support.grpc_server import serving_methods

X = {"x": np.ones((1, 2), np.float32)}
FLOAT = tensor_pb2.DATA_TYPE_FLOAT32


def refusals(address: str, **arguments: Any) -> Iterator[ca.CutawayError]:
    """What both clients raise, for a reply in one message and for a stream."""

    async def awaited(stream: bool) -> None:
        async with ca.AsyncClient(address, timeout=20) as client:
            await client.inspect("net", X, stream=stream, **arguments)

    with ca.Client(address, timeout=20) as client:
        for stream in (False, True):
            for call in (lambda s: client.inspect("net", X, stream=s, **arguments), lambda s: asyncio.run(awaited(s))):
                with pytest.raises(ca.CutawayError) as caught:
                    call(stream)
                yield caught.value


@contextmanager
def answering(response: inspection_pb2.InspectResponse) -> Iterator[str]:
    """A server that answers every request with ``response``; in pieces, as the header of a stream that ends there."""
    header = inspection_service_pb2.StreamHeader(response=response)
    piece = inspection_service_pb2.InspectStreamResponse(piece=inspection_service_pb2.StreamPiece(header=header))
    methods: dict[str, Any] = {
        "Inspect": grpc.unary_unary_rpc_method_handler(lambda data, context: response.SerializeToString()),
        "InspectStream": grpc.unary_stream_rpc_method_handler(lambda data, context: iter([piece.SerializeToString()])),
    }
    with serving_methods(methods) as address:
        yield address


def reply(*tensors: tensor_pb2.Tensor) -> inspection_pb2.InspectResponse:
    named = [tensor_pb2.NamedTensor(name=f"t{number}", tensor=tensor) for number, tensor in enumerate(tensors)]
    return inspection_pb2.InspectResponse(predictions=inspection_pb2.Predictions(outputs=named))


def packed(elements: int) -> tensor_pb2.Tensor:
    """A tensor of a few bytes that states to unpack to ``elements`` numbers."""
    frame = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", elements * 4) + b"\x01\x00\x00"  # Zstandard: no content follows
    return tensor_pb2.Tensor(data_type=FLOAT, shape=[elements], data=frame, compression=tensor_pb2.COMPRESSION_ZSTD)


@pytest.mark.parametrize(
    "response", [reply(packed(1 << 39)), reply(*[packed(1 << 28)] * 5)], ids=["one of 2 TiB", "five of 1 GiB"]
)
def test_a_reply_that_announces_more_than_memory_is_refused(response: inspection_pb2.InspectResponse) -> None:
    """A few bytes that unpack to terabytes, or tensors that are too large together: an error that names both sizes."""
    with answering(response) as address:
        for refusal in refusals(address):
            assert (refusal.reason, refusal.field) == (Reason.REPLY_TOO_LARGE, "max_reply_bytes")
            assert f"this client accepts {4 << 30}" in refusal.message


@pytest.mark.parametrize("shape", [[1 << 60], [2] * 4000], ids=["2**60 elements", "4000 axes"])
def test_a_shape_that_no_array_has_is_refused(shape: list[int]) -> None:
    """It is a damaged reply."""
    with answering(reply(tensor_pb2.Tensor(data_type=FLOAT, shape=shape))) as address:
        assert {refusal.reason for refusal in refusals(address)} == {Reason.INTERNAL}


def test_the_caller_may_allow_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply above the client's own limit is read where ``max_reply_bytes`` allows it; here it is damaged."""
    monkeypatch.setattr(chunks, "MAX_REPLY_BYTES", 1000)
    with answering(reply(packed(1000))) as address:
        assert {refusal.reason for refusal in refusals(address)} == {Reason.REPLY_TOO_LARGE}
        assert {refusal.reason for refusal in refusals(address, max_reply_bytes=4000)} == {Reason.INTERNAL}


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


def check(address: str, kind: type[ca.CutawayError], reason: Reason) -> None:
    with ca.Client(address, timeout=20) as client, pytest.raises(ca.CutawayError) as listed:
        client.list_models()
    for refusal in (*refusals(address), listed.value):
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
