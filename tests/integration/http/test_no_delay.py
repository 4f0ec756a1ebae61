"""Small replies leave at once."""

from __future__ import annotations

import socket

import pytest
from torch import nn

from cutaway.gateway import serve
from cutaway.server.http.server import HttpConnection
from cutaway.server.settings import Settings
from tests.support.doors import post


def test_a_body_does_not_wait_for_the_acknowledgement_of_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nagle's algorithm is off on the connections of callers."""
    options = []
    begun = HttpConnection.on_message_begin

    def noting(connection: HttpConnection) -> None:
        accepted = connection.transport.get_extra_info("socket")
        options.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        begun(connection)

    monkeypatch.setattr(HttpConnection, "on_message_begin", noting)
    with serve({"net": nn.Identity()}, settings=Settings(http_address="127.0.0.1:0")) as server:
        body = b'{"instances": [[1.0]]}'
        url = f"http://{server.http_address}/v1/models/net:predict"
        status, _, reply = post(url, body, {"content-type": "application/json"})
    assert (status, len(options), all(options)) == (200, 1, True), reply
