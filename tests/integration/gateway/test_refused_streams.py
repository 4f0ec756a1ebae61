"""A server that is late lets gRPC refuse calls unread: the caller hears that there are too many."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

import cutaway as ca

PREFACE = 24
HEAD = 9
HEADERS, RST_STREAM, SETTINGS = 1, 3, 4
REFUSED_STREAM = 7


@pytest.fixture
def refusing() -> Iterator[str]:
    """The address of a server that resets each stream as soon as it begins: HTTP/2 by hand, as gRPC never does it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_refuse_all, args=(listening,), daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def _refuse_all(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    with connection, connection.makefile("rb") as received:
        received.read(PREFACE)
        connection.sendall(_frame(SETTINGS, 0, b""))
        while head := received.read(HEAD):
            received.read(int.from_bytes(head[:3], "big"))
            stream = int.from_bytes(head[5:], "big")
            if head[3] == HEADERS:
                connection.sendall(_frame(RST_STREAM, stream, REFUSED_STREAM.to_bytes(4, "big")))


def _frame(kind: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, 0]) + stream.to_bytes(4, "big") + payload


def test_a_call_that_is_refused_unread_is_one_too_many(refusing: str) -> None:
    """It may be asked again: nothing of it was done."""
    with ca.Client(refusing, timeout=20) as client, pytest.raises(ca.ResourceExhausted) as caught:
        client.list_models()
    assert caught.value.reason == "OVERLOADED"
    assert caught.value.retry_after_s
