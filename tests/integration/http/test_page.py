"""The inspector's page by HTTP: for everybody, with headers that let nothing from elsewhere in, and kept."""

from __future__ import annotations

import gzip
import re
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

from cutaway.gateway import serve
from cutaway.server.http.server import STATIC
from cutaway.server.settings import Settings
from tests.support.doors import of_problem, post
from tests.support.token_files import EVERY, entry, write

LARGEST_BYTES = 350_000
"""Of all files together, compressed."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that answers only calls with a token."""
    tokens: Path = write(tmp_path_factory.mktemp("page") / "tokens.toml", entry("app", {"*": EVERY}))
    torch.manual_seed(0)
    with serve({"net": nn.Linear(2, 2)}, settings=Settings(tokens=tokens, http_address="127.0.0.1:0")) as server:
        yield f"http://{server.http_address}"


def files() -> list[str]:
    return [path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file()]


def head(url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
    with urllib.request.urlopen(urllib.request.Request(url, None, dict(headers), method="HEAD")) as reply:
        assert reply.read() == b""
        return {key.lower(): value for key, value in reply.headers.items()}


def test_the_page_is_public_and_its_calls_are_not(url: str) -> None:
    status, headers, page = post(f"{url}/", None, {})
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page == (STATIC / "index.html").read_bytes()
    status, _, problem = post(f"{url}/v1/models", None, {})
    assert (status, of_problem(problem).reason) == (401, "TOKEN_REQUIRED")
    status, _, told = post(
        f"{url}/cutaway.v1.InspectionService/ListModels", b"{}", {"content-type": "application/json"}
    )
    assert (status, b"TOKEN_REQUIRED" in told or b"unauthenticated" in told) == (401, True)


def test_every_file_is_served_with_the_headers_of_its_kind(url: str) -> None:
    """Scripts of its own only, in no frame, no guessed types; assets for ever, the page itself never unasked."""
    assert len(files()) >= 3
    for name in files():
        _, headers, body = post(f"{url}/{name if name != 'index.html' else ''}", None, {})
        assert body == (STATIC / name).read_bytes()
        policy = headers["content-security-policy"]
        assert {"default-src 'self'", "frame-ancestors 'none'", "object-src 'none'"} <= set(policy.split("; "))
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert ("immutable" in headers["cache-control"]) == name.startswith("assets/")
        assert (headers["cache-control"] == "no-cache") == (name == "index.html")


def test_a_browser_fetches_nothing_twice(url: str) -> None:
    """What it has is not sent again; HEAD has the same headers; bytes are compressed where it takes that."""
    known = head(f"{url}/", {})
    assert known["content-length"] == str((STATIC / "index.html").stat().st_size)
    status, _, body = post(f"{url}/", None, {"if-none-match": known["etag"]})
    assert (status, body) == (304, b"")
    for script in (name for name in files() if name.endswith(".js")):
        _, headers, body = post(f"{url}/{script}", None, {"accept-encoding": "gzip"})
        assert headers["content-encoding"] == "gzip"
        assert gzip.decompress(body) == (STATIC / script).read_bytes()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("nothing", None, 404),
        ("assets/nothing.js", None, 404),
        ("assets/../../index.html", None, 404),
        ("assets/%2e%2e/%2e%2e/contract/errors.py", None, 404),
        ("index.html", None, 404),
        ("", b"{}", 405),
    ],
)
def test_all_else_is_a_problem_as_before(url: str, path: str, body: bytes | None, status: int) -> None:
    got, headers, reply = post(f"{url}/{path}", body, {"content-type": "application/json"})
    assert (got, headers["content-type"]) == (status, "application/problem+json")
    assert b'"status":' in reply


def test_it_is_small_and_needs_nothing_from_elsewhere(url: str) -> None:
    """No address of another site is fetched: those in it are names of XML and texts of errors."""
    assert sum(len(gzip.compress((STATIC / name).read_bytes())) for name in files()) < LARGEST_BYTES
    page = (STATIC / "index.html").read_text("utf-8")
    fetched = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert {address for address in fetched if not address.startswith("./assets/")} == {"docs"}
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=", page)
    script = "\n".join((STATIC / name).read_text("utf-8") for name in files() if name.endswith(".js"))
    assert "eval(" not in script
    assert "new Function" not in script
