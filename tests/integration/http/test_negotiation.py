"""Which form a reply has, by ``Accept``, and which methods a URL takes, by ``Allow``."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection

import numpy as np
import pytest
from torch import nn

from cutaway.client.request_builder import build_request
from cutaway.client.transport import SERVICE
from cutaway.contract.wire.requests import encode
from cutaway.gateway import serve
from cutaway.server.settings import Settings

X = np.ones((1, 4), np.float32)
JSON, NPY, NPZ, BINARY = "application/json", "application/x-npy", "application/x-npz", "application/proto"
EVENTS = "text/event-stream; charset=utf-8"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serve({"net": nn.Linear(4, 2)}, settings=Settings(http_address="127.0.0.1:0")) as server:
        assert server.http_address
        yield server.http_address


def ask(
    address: str, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None, *accept: str
) -> tuple[int, dict[str, str], bytes]:
    """The status, the headers and the body of a reply to a request with an ``Accept`` for each of ``accept``."""
    with closing(HTTPConnection(address, timeout=60)) as connection:
        connection.putrequest(method, path)
        for name, value in [*(headers or {}).items(), *(("accept", each) for each in accept)]:
            connection.putheader(name, value)
        connection.putheader("content-length", str(len(body)))
        connection.endheaders(body)
        reply = connection.getresponse()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()


def _npy() -> bytes:
    file = io.BytesIO()
    np.save(file, X)
    return file.getvalue()


BODIES = {
    JSON: ("predict", json.dumps({"instances": X.tolist()}).encode()),
    NPY: ("predict", _npy()),
    BINARY: ("inspect", encode(build_request("net", X)).SerializeToString()),
}
ACCEPTED: dict[tuple[str, tuple[str, ...]], str] = {
    (JSON, ()): JSON,
    (JSON, ("*/*",)): JSON,
    (JSON, ("text/html",)): JSON,  # what no reply has is no choice
    (JSON, (NPZ,)): NPZ,
    (JSON, (f"{NPZ};q=0",)): JSON,
    (JSON, (f"{NPZ}; Q=0.000, {NPY};q=0",)): JSON,
    (JSON, (f"{NPZ};q=0, {NPY}",)): NPY,
    (JSON, (f"{JSON};q=0, */*",)): NPZ,
    (JSON, (f"{JSON};q=0, application/*;q=0.1",)): NPZ,
    (JSON, (f"{NPZ};q=0.1, {JSON}",)): JSON,
    (JSON, (f"{NPZ};q=0.9, */*",)): JSON,
    (JSON, (f"{NPZ}, */*",)): NPZ,
    (JSON, (f"{JSON};q=0", NPY)): NPY,
    (JSON, (f"{NPZ}2",)): JSON,
    (JSON, ("APPLICATION/X-NPZ",)): NPZ,
    (JSON, ("text/event-stream",)): EVENTS,
    (JSON, ("text/event-stream, application/json;q=0.9",)): EVENTS,
    (JSON, ("text/event-stream, */*",)): EVENTS,
    (JSON, ("text/event-stream;q=0",)): JSON,
    (NPY, ("text/event-stream",)): EVENTS,
    (BINARY, ("text/event-stream",)): EVENTS,
    (NPY, ()): NPZ,
    (NPY, (JSON,)): JSON,
    (NPY, (f"{JSON};q=0",)): NPZ,
    (NPY, (f"{NPZ};q=0, */*;q=0.5",)): NPY,
    (BINARY, ()): BINARY,
    (BINARY, (JSON,)): JSON,
    (BINARY, (f"{JSON};q=0",)): BINARY,
    (BINARY, (f"{BINARY};q=0, */*",)): JSON,
}


@pytest.mark.parametrize(("kind", "accept"), ACCEPTED)
def test_a_reply_has_the_form_that_is_accepted(address: str, kind: str, accept: tuple[str, ...]) -> None:
    """The one with the largest quality (RFC 9110, 12.5.1); none with the quality 0."""
    verb, body = BODIES[kind]
    status, headers, _ = ask(address, "POST", f"/v1/models/net:{verb}", body, {"content-type": kind}, *accept)
    assert (status, headers["content-type"]) == (200, ACCEPTED[kind, accept])


@pytest.mark.parametrize(
    ("kind", "accept"), [(JSON, f"{JSON};q=0"), (JSON, "*/*;q=0"), (BINARY, "*/*;q=0"), (JSON, f"{NPZ};q=2")]
)
def test_who_accepts_nothing_is_told(address: str, kind: str, accept: str) -> None:
    verb, body = BODIES[kind]
    status, _, reply = ask(address, "POST", f"/v1/models/net:{verb}", body, {"content-type": kind}, accept)
    told = json.loads(reply)
    assert (status, told["reason"], told["field"]) == (400, "INVALID_VALUE", "accept")


ALLOWED = {
    "/v1/models": {"GET", "HEAD"},
    "/v1/models/net": {"GET", "HEAD", "POST"},
    "/v1/models/net:predict": {"GET", "HEAD", "POST"},
    "/v2/models/net/infer": {"POST"},
    "/v2/models/net": {"GET", "HEAD"},
    "/v2/health/live": {"GET", "HEAD"},
    f"/{SERVICE}/ListModels": {"POST"},
    "/": {"GET", "HEAD"},
    "/assets/none.js": {"GET", "HEAD"},
    "/docs": {"GET", "HEAD"},
}


@pytest.mark.parametrize("path", ALLOWED)
def test_a_method_that_is_not_served_is_told_which_are(address: str, path: str) -> None:
    """All of them (RFC 9110, 15.5.6), whichever part of the server has the URL."""
    status, headers, _ = ask(address, "DELETE", path)
    assert (status, set(headers["allow"].split(", "))) == (405, ALLOWED[path])
