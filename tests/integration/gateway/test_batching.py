"""Calls that wait for one model are answered together, and each as if it were alone: through the gateway, through
real TorchServe, and when a worker dies of one of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.errors import CutawayError
from cutaway.contract.tensors import Array
from cutaway.gateway import serve
from cutaway.server.settings import Settings
from tests.conftest import ADAPTERS
from tests.support.adapters.fragile_adapter import DEADLY, SLOW
from tests.support.prometheus import waiting_calls as read_waiting
from tests.support.reply_equality import differences
from tests.support.rounding import SMALL, close, rounding
from tests.support.serving import package, serving
from tests.support.waiting import PATIENCE_S, until

ROUNDING = rounding(torch.float32, SMALL)


class Gate(nn.Module):
    """Lets nobody through until it is opened, and remembers how many rows each pass had."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.entered = threading.Event()
        self.open = threading.Event()
        self.rows: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.rows.append(len(x))
        self.entered.set()
        self.open.wait(PATIENCE_S)
        return self.linear(x)


def waiting_calls(calls: int, batch: int) -> list[int]:
    """How many rows each pass had, once ``calls`` callers waited while the model was busy."""
    gate = Gate()
    linear = deepcopy(gate.linear)  # nobody else may run a model that is served
    settings = Settings(max_batch_size=batch, metrics_address="127.0.0.1:0")
    with serve({"gate": gate}, settings=settings) as server, ca.Client(server.address) as client:

        def ask(number: int) -> Array:
            x = np.full((1, 2), number, np.float32)
            return client.inspect("gate", {"x": x}, captures=["linear"]).captures["linear"].output

        gate.open.set()
        with ThreadPoolExecutor(calls + 1) as callers:
            list(callers.map(ask, range(4)))  # what the model is like is found out by the first that meet
            gate.open.clear()
            gate.entered.clear()
            first = callers.submit(ask, 0)
            gate.entered.wait(PATIENCE_S)
            gate.rows.clear()
            others = [callers.submit(ask, number) for number in range(calls)]
            until(lambda: read_waiting(server.metrics_address, "gate") == calls)
            gate.open.set()
            for number, answer in enumerate(each.result() for each in others):
                expected = linear(torch.full((1, 2), float(number))).detach().numpy()
                assert close(answer, expected, SMALL)
            first.result()
    return gate.rows


def test_callers_that_wait_are_answered_in_one_pass() -> None:
    """Eight callers that found the model busy take one pass when it is free, and each gets its own row."""
    assert 8 in waiting_calls(8, batch=32)


def test_no_pass_takes_more_calls_than_the_operator_allows() -> None:
    """``batch`` is the most; 1 is one by one."""
    assert max(waiting_calls(8, batch=4)) == 4
    assert max(waiting_calls(4, batch=1)) == 1


@pytest.fixture(scope="module", params=["processes", "torchserve"])
def fragile(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway before workers of each engine, whose messages carry a megabyte."""
    directory = tmp_path_factory.mktemp("fragile")
    package(directory / "store", "fragile", f"{ADAPTERS / 'fragile_adapter.py'}:FragileAdapter")
    package(directory / "store", "tiny", f"{ADAPTERS / 'tiny_adapter.py'}:Tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUTAWAY_MAX_MESSAGE_BYTES", str(1 << 20))
        with serving(directory / "store", directory / "logs", f"--engine={request.param}") as server:
            yield server.address


def ask_fragile(client: ca.Client, value: float, **asked: Any) -> ca.InspectResult | CutawayError:
    try:
        return client.inspect("fragile", {"x": np.full((1, 3), value, np.float32)}, **asked)
    except CutawayError as failure:
        return failure


def at_once(client: ca.Client, values: Sequence[float], **asked: Any) -> list[ca.InspectResult | CutawayError]:
    """The answers to calls that all waited while the model was busy."""
    with ThreadPoolExecutor(len(values) + 2) as callers:
        busy = [callers.submit(ask_fragile, client, SLOW) for _ in range(2)]  # both turns that may be under way
        threading.Event().wait(0.3)
        answers = list(callers.map(lambda value: ask_fragile(client, value, **asked), values))
        assert not [each for each in busy if isinstance(each.result(), CutawayError)]
        return answers


@pytest.mark.slow
def test_a_call_that_kills_its_worker_fails_alone(fragile: str) -> None:
    """The others of its turn are asked again, each by itself, and are answered by the next worker."""
    values = [1.0, 2.0, DEADLY, 3.0, 4.0, 5.0]
    with ca.Client(fragile) as client:
        for value, answer in zip(values, at_once(client, values)):
            if value == DEADLY:
                assert isinstance(answer, ca.Internal)
                assert answer.reason == "WORKER_KILLED"
            else:
                assert not list(differences(answer, ask_fragile(client, value), ROUNDING))


@pytest.mark.slow
def test_replies_of_a_turn_may_be_more_than_a_message_carries(fragile: str) -> None:
    """Six replies of 400 kB, where a message carries one megabyte: each arrives whole."""
    values = [float(number) for number in range(6)]
    with ca.Client(fragile) as client:
        for value, answer in zip(values, at_once(client, values, captures=["wide"])):
            alone = ask_fragile(client, value, captures=["wide"])
            assert isinstance(alone, ca.InspectResult)
            assert alone.captures["wide"].output.nbytes == 400_000
            assert not list(differences(answer, alone, ROUNDING))


@pytest.mark.slow
def test_requests_that_do_not_fit_one_message_take_turns(fragile: str) -> None:
    """Eight requests of 600 kB, where a message carries one megabyte, never share one."""
    x = np.ones((50_000, 3), np.float32)
    with ca.Client(fragile) as client, ThreadPoolExecutor(8) as callers:
        asked = [callers.submit(client.inspect, "tiny", {"x": x * number}) for number in range(8)]
        assert [each.result().predictions["output"].shape for each in asked] == [(50_000, 2)] * 8
