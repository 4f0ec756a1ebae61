"""Which way a reply comes: in one message or in pieces, without a word of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.tensors import Array
from cutaway.gateway import serve
from cutaway.v1.inspection_pb2 import InspectRequest

MUCH = np.ones((1, 1 << 20), np.float32)
LITTLE = np.ones((1, 3), np.float32)
CAPTURES = ["inner"]


class Same(nn.Module):
    """Gives back what it gets, and shows it inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.inner(x)
        return inner


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serve({"same": Same()}) as server:
        yield server.address


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that a client made, by kind, as they are made."""
    made: list[str] = []
    for client in (ca.Client, ca.AsyncClient):
        for name in ("_send", "_messages"):
            monkeypatch.setattr(client, name, _noting(made, name, getattr(client, name)))
    return made


def _noting(made: list[str], name: str, intact: Any) -> Any:
    def noting(self: Any, call: Any, timeout: float | None) -> Any:
        dry = name == "_send" and InspectRequest.FromString(call.payload).options.dry_run
        made.append("estimate" if dry else {"_send": "one message", "_messages": "pieces"}[name])
        return intact(self, call, timeout)

    return noting


async def asked(client: ca.AsyncClient, x: Array) -> ca.InspectResult:
    return await client.inspect("same", {"x": x}, captures=CAPTURES)


def test_who_sends_much_asks_first_how_much_comes_back(address: str, ways: list[str]) -> None:
    """Once for each kind of question: 8 MiB come back, and come in pieces, each time."""
    with ca.Client(address) as client:
        for _ in range(2):
            assert np.array_equal(client.inspect("same", {"x": MUCH}, captures=CAPTURES).captures["inner"].output, MUCH)
    assert ways == ["estimate", "pieces", "pieces"]


def test_who_sends_little_is_answered_at_once(address: str, ways: list[str]) -> None:
    """An estimate would cost a lone caller as much as the answer."""
    with ca.Client(address) as client:
        for _ in range(2):
            client.inspect("same", {"x": LITTLE}, captures=CAPTURES)
    assert ways == ["one message"] * 2


def test_much_may_come_back_as_little(address: str, ways: list[str]) -> None:
    """What decides is the reply: without predictions, a mean of each row is small however much is sent."""
    capture = ca.Capture("inner", reduce=ca.Mean((1,)))
    with ca.Client(address) as client:
        client.inspect("same", {"x": MUCH}, captures=[capture], predictions=False)
    assert ways == ["estimate", "one message"]


def test_a_question_that_cannot_be_answered_says_why_itself(address: str, ways: list[str]) -> None:
    """The estimate's refusal is nobody's business but the client's."""
    with ca.Client(address) as client, pytest.raises(ca.InvalidArgument, match="no module is named 'outer'"):
        client.inspect("same", {"x": MUCH}, captures=["outer"])
    assert ways == ["estimate", "one message"]


def test_a_dry_run_is_remembered_as_no_reply(address: str, ways: list[str]) -> None:
    """Its own size says nothing of the answer's."""
    with ca.Client(address) as client:
        estimate = client.inspect("same", {"x": MUCH}, captures=CAPTURES, dry_run=True).estimate
        assert estimate is not None
        assert estimate.reply_bytes > 2 * MUCH.nbytes
        client.inspect("same", {"x": MUCH}, captures=CAPTURES)
    assert ways == ["estimate", "estimate", "pieces"]


def test_the_awaited_client_goes_the_same_ways(address: str, ways: list[str]) -> None:
    """Both clients do alike."""

    async def ask() -> None:
        async with ca.AsyncClient(address) as client:
            for x in (MUCH, MUCH, LITTLE):
                assert np.array_equal((await asked(client, x)).captures["inner"].output, x)

    asyncio.run(ask())
    assert ways == ["estimate", "pieces", "pieces", "one message"]
