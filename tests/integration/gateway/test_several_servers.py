"""One client and several servers: calls go round those that serve."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import cutaway as ca
from cutaway.client.trust import is_loopback
from cutaway.gateway import serve
from tests.conftest import ADAPTERS
from tests.support.serving import Server, package, serving
from tests.support.waiting import until

X = np.ones((1, 3), np.float32)


class Says(nn.Module):
    """Says which one it is."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full((len(x), 1), self.number)


def answers(client: ca.Client, calls: int) -> Counter[float]:
    """How many of the calls each server has answered."""
    return Counter(client.inspect("net", {"x": X}).predictions["output"].item() for _ in range(calls))


def test_calls_go_round() -> None:
    """Each server gets as many as the other, once there is a connection to both."""
    with (
        serve({"net": Says(1)}) as one,
        serve({"net": Says(2)}) as two,
        ca.Client(f"ipv4:{one.address},{two.address}") as client,
    ):
        until(lambda: len(answers(client, 4)) == 2)
        assert answers(client, 10) == {1.0: 5, 2.0: 5}


def test_a_server_that_does_not_serve_gets_no_calls() -> None:
    """Its health says so before it is gone: none of its calls fails."""
    with serve({"net": Says(1)}) as one, contextlib.ExitStack() as other:
        two = other.enter_context(serve({"net": Says(2)}))
        with ca.Client(f"ipv4:{one.address},{two.address}") as client:
            until(lambda: len(answers(client, 4)) == 2)
            other.close()
            until(lambda: answers(client, 4) == {1.0: 4})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("store")
    package(directory, "tiny", f"{ADAPTERS / 'tiny_adapter.py'}:Tiny")
    return directory


@contextlib.contextmanager
def two(store: Path, logs: Path) -> Iterator[tuple[Server, Server]]:
    with (
        serving(store, logs / "one", "--engine=embedded") as one,
        serving(store, logs / "two", "--engine=embedded") as other,
    ):
        yield one, other


@pytest.mark.slow
def test_a_server_that_is_killed_takes_no_further_call_with_it(store: Path, tmp_path: Path) -> None:
    """The call that it runs may fail; afterwards all go to the other, and to both when it is back."""
    with two(store, tmp_path) as (one, other), ca.Client(f"ipv4:{one.address},{other.address}") as client:
        client.inspect("tiny", {"x": X})
        other.process.kill()
        failed = 0
        for _ in range(100):
            try:
                client.inspect("tiny", {"x": X})
            except ca.Unavailable:
                failed += 1
        assert failed <= 2
        with serving(store, tmp_path / "again", "--engine=embedded", "--address", other.address) as back:
            one.process.kill()
            until(lambda: _answers(client))
            assert back.process.poll() is None


def _answers(client: ca.Client) -> bool:
    with contextlib.suppress(ca.Unavailable):
        return bool(client.inspect("tiny", {"x": X}).predictions)
    return False


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("ipv4:127.0.0.1:1,127.0.0.2:2", True),
        ("ipv6:[::1]:1", True),
        ("ipv4:127.0.0.1:1,192.0.2.1:1", False),
        ("ipv4:127.0.0.1:1%2C192.0.2.1:1", False),
        ("ipv4:localhost:1", False),
        ("ipv4:ipv4:127.0.0.1:1", False),
        ("ipv4:", False),
        ("ipv6:[2001:db8::1]:1,[::1]:1", False),
    ],
)
def test_a_list_is_of_this_machine_if_all_of_it_is(address: str, expected: bool) -> None:
    """Only then a token goes to it in plaintext."""
    assert is_loopback(address) is expected
