"""Who may ask what is the same by every protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import cutaway as ca
from cutaway.gateway import serve
from cutaway.server.embedded import Served
from cutaway.server.settings import Settings
from tests.integration.gateway.test_authorization import NAMES, QUESTIONS, SUBSETS, Nets, X
from tests.support.doors import doors, of_problem, post
from tests.support.mixed.mix import Outcome, Request
from tests.support.token_files import entry, write


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path: Path = write(
        tmp_path_factory.mktemp("access") / "tokens.toml",
        *(entry(name, {"net": sorted(scopes)}) for scopes, name in NAMES.items()),
    )
    with serve({"net": Nets()}, settings=Settings(tokens=path, http_address="127.0.0.1:0")) as running:
        yield running


@pytest.mark.parametrize("scopes", SUBSETS, ids=NAMES.values())
def test_each_scope_at_every_door(server: Served, scopes: frozenset[str]) -> None:
    """Every kind of question is answered, or refused for the same reason, as by gRPC, which has tests of its own."""
    with doors(server.address, server.http_address, NAMES[scopes]) as by_door:
        for name, asked in QUESTIONS.items():
            outcomes = {door: ask(Request(name, "net", X, asked.what)) for door, ask in by_door.items()}
            expected = ca.InspectResult if asked.needs <= scopes else ca.CutawayError
            assert all(isinstance(outcome, expected) for outcome in outcomes.values()), (name, outcomes)
            assert len({_told(outcome) for outcome in outcomes.values()}) == 1, (name, outcomes)


@pytest.mark.parametrize(("token", "reason"), [("", "TOKEN_REQUIRED"), ("Bearer wrong", "TOKEN_INVALID")])
def test_nobody_gets_in_without_a_token(server: Served, token: str, reason: str) -> None:
    """Before the request is read: what it holds does not matter."""
    headers = {"content-type": "application/json", **({"authorization": token} if token else {})}
    for path, body in (("", None), ("/net", None), ("/net:predict", b"{"), ("/net:inspect", b"")):
        status, got, reply = post(f"http://{server.http_address}/v1/models{path}", body, headers)
        assert (status, of_problem(reply).reason, got["www-authenticate"]) == (401, reason, "Bearer")
    status, _, reply = post(f"http://{server.http_address}/cutaway.v1.InspectionService/Inspect", b"{", headers)
    assert (status, b"unauthenticated" in reply) == (401, True)


def _told(outcome: Outcome) -> tuple[str, str]:
    return (outcome.reason, outcome.field) if isinstance(outcome, ca.CutawayError) else ("", "")
