"""Tokens, and what is counted, as by every other protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.grpc as by_grpc
import tritonclient.http as by_http
from tritonclient.utils import InferenceServerException

from cutaway.gateway import serve
from cutaway.server.embedded import Served
from cutaway.server.settings import Settings
from tests.integration.open_inference.doors import Door, connected, names
from tests.integration.open_inference.models import Classes, Same, X
from tests.support.prometheus import named, scraped
from tests.support.token_files import EVERY, entry, write


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path: Path = write(
        tmp_path_factory.mktemp("open_inference") / "tokens.toml",
        entry("all", {"classes": EVERY}),
        entry("predicts", {"classes": ["predict"]}),
    )
    settings = Settings(tokens=path, http_address="127.0.0.1:0", metrics_address="127.0.0.1:0")
    with serve({"classes": Classes(), "same": Same()}, settings=settings) as running:
        yield running


@pytest.fixture(params=[by_grpc, by_http], ids=["grpc", "http"])
def guarded_door(guarded: Served, request: pytest.FixtureRequest) -> Iterator[Door]:
    with connected(request.param, guarded) as door:
        yield door


def test_tokens(guarded_door: Door) -> None:
    """As at every door: only whether the server lives is told without one."""
    door = guarded_door
    assert door.client.is_server_live()
    assert door.client.is_server_ready()
    assert "send a token" in door.refused({"image": X})
    for call in (
        door.client.get_server_metadata,
        lambda **headers: door.client.get_model_metadata("classes", **headers),
    ):
        with pytest.raises(InferenceServerException, match="token"):
            call()
        assert call(headers={"authorization": "Bearer predicts"})
    inside = {"cutaway": json.dumps({"captures": [{"module": "conv"}]})}
    narrow, broad = ({"authorization": f"Bearer {name}"} for name in ("predicts", "all"))
    assert door.infer({"image": X}, headers=narrow).as_numpy("output") is not None
    assert "captures: this token may not" in door.refused({"image": X}, headers=narrow, parameters=inside)
    assert names(door.infer({"image": X}, headers=broad, parameters=inside)) == ["output", "capture:conv@output"]
    assert "no model of that name" in door.refused({"input": X}, headers=broad, model="same")


def test_calls_are_counted_as_those_of_our_service(guarded: Served, guarded_door: Door) -> None:
    """Also those that are refused before their request is read."""

    def counted() -> dict[tuple[str, ...], float]:
        samples = scraped(guarded.metrics_address)
        return named(samples, "cutaway_calls_total", "method", "model", "reason")

    before = counted()
    known = {"authorization": "Bearer predicts"}
    guarded_door.infer({"image": X}, headers=known)
    guarded_door.refused({"image": X})
    guarded_door.refused({"image": X}, headers=known, parameters={"cutaway": "{"})
    guarded_door.client.get_model_metadata("classes", headers=known)
    expected = {
        ("Inspect", "classes", ""),
        ("Inspect", "", "TOKEN_REQUIRED"),
        ("Inspect", "", "MALFORMED_REQUEST"),
        ("GetModel", "classes", ""),
        ("ListModels", "", ""),
    }
    assert {key for key, count in counted().items() if count == before.get(key, 0) + 1} == expected
