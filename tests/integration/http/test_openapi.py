"""The description of the HTTP service: served with a page to try it; requests made from it never fail the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
import torch
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from torch import nn

from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec
from cutaway.gateway import serve
from cutaway.server.settings import Settings
from tests.support.doors import post
from tools.openapi import FILE, description, written

EXAMPLES = 20
"""Requests for each operation."""


class Small(Adapter):
    """Two numbers in, two out."""

    inputs = (InputSpec("input", "float32", (-1, 2)),)

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(2, 2)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve({"small": Small()}, settings=Settings(http_address="127.0.0.1:0")) as server:
        yield f"http://{server.http_address}"


def test_what_it_describes_is_served(url: str) -> None:
    """As JSON, for everybody, with a page that needs nothing from elsewhere; it is that of the contract."""
    assert FILE.read_text() == written()  # make docs
    status, _, text = post(f"{url}/openapi.json", None, {})
    assert (status, json.loads(text)) == (200, description())
    status, headers, page = post(f"{url}/docs", None, {})
    assert status == 200
    assert b"http" not in page.replace(b"<html", b"")
    assert "default-src 'self'" in headers["content-security-policy"]
    for name in ("swagger-ui.css", "swagger-ui-bundle.js", "start.js"):
        assert post(f"{url}/docs/{name}", None, {})[0] == 200
    assert post(f"{url}/docs/other.js", None, {})[0] == 404


@pytest.mark.slow
def test_requests_made_from_it(url: str) -> None:
    """No request that the description allows, or nearly allows, makes the server fail."""
    schema = schemathesis.openapi.from_dict({**description(), "servers": [{"url": url}]})
    asked = []
    for result in schema.get_all_operations():
        operation: Any = result.ok()  # type: ignore[union-attr]

        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(case=operation.as_strategy())
        def ask(case: schemathesis.Case) -> None:
            case.call_and_validate(base_url=url, checks=[not_a_server_error])

        ask()
        asked.append(operation.label)
    assert len(asked) == 9
