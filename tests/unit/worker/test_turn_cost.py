"""Slow turns are split into parts that cost next to nothing; quick ones, and those that share much, stay whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cutaway.contract.errors import CutawayError
from cutaway.contract.wire.worker_reply import Parts
from cutaway.server.worker import calls as calls_module
from cutaway.server.worker.call import Call
from cutaway.server.worker.calls import Calls, TurnCost
from cutaway.server.worker.model_threads import Job
from cutaway.server.worker.worker import Worker
from cutaway.v1 import worker_pb2
from tests.support.waiting import PATIENCE_S
from tests.support.worker_calls import read, row, worker


def cost_of(fixed_s: float, each_s: float, sizes: tuple[int, ...] = (1, 5, 32)) -> TurnCost:
    cost = TurnCost()
    for size in sizes:
        cost.took(size, fixed_s + size * each_s)
    return cost


def sizes(cost: TurnCost, calls: int) -> list[int]:
    return [len(part) for part in cost.parts(range(calls))]


@pytest.mark.parametrize(
    ("fixed_s", "each_s", "expected"),
    [
        (0.0, 0.2, [1] * 32),  # a large model: calls share nothing
        (0.0, 0.03, [4] * 8),  # as many as take a tenth of a second
        (0.02, 0.04, [5, 5, 5, 5, 5, 5, 2]),  # a fixed cost seven times instead of once: 9 % more
        (0.5, 0.01, [32]),  # what they share is most of it
        (0.001, 0.0004, [32]),  # quick
    ],
)
def test_parts(fixed_s: float, each_s: float, expected: list[int]) -> None:
    assert sizes(cost_of(fixed_s, each_s), 32) == expected


@pytest.mark.parametrize("fixed_s", [0.0, 0.01, 0.1, 0.4, 2.0])
@pytest.mark.parametrize("each_s", [0.001, 0.02, 0.3])
@pytest.mark.parametrize("calls", [2, 7, 32])
def test_all_parts_take_little_more_than_the_turn(fixed_s: float, each_s: float, calls: int) -> None:
    """A tenth more at most, but for the last part, which may be smaller; and every call is in one part."""
    found = sizes(cost_of(fixed_s, each_s), calls)
    assert sum(found) == calls
    whole = fixed_s + calls * each_s
    assert (len(found) - 1) * fixed_s + calls * each_s <= 1.1 * whole


def test_nothing_is_split_before_costs_are_known() -> None:
    assert sizes(TurnCost(), 32) == [32]
    assert sizes(cost_of(0.0, 1.0, sizes=(8, 8, 8)), 32) == [32]


def test_costs_that_no_longer_hold_are_forgotten() -> None:
    cost = cost_of(0.0, 1.0)
    assert sizes(cost, 4) == [1] * 4
    for size in [2, 3] * 32:
        cost.took(size, 1.0)
    assert sizes(cost, 4) == [4]


class Counts(nn.Module):
    """Knows how many rows it has run."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def forward(self, x: Tensor) -> Tensor:
        self.rows += len(x)
        return x * 2


def test_the_first_part_is_answered_before_the_next_has_run() -> None:
    """A turn of three calls that share nothing."""
    model = Counts()
    replied: dict[int, tuple[int, bytes]] = {}

    def reply(number: int, data: Parts) -> None:
        replied[number] = model.rows, b"".join(data)

    served = worker(model)
    read(*served.answer([row({"x": torch.zeros(1, 2)})]))  # the first finds out where rows are
    calls = Calls(served, reply)
    calls._cost = cost_of(0.0, 1.0)
    model.rows = 0
    calls.run([message(number) for number in (1, 2, 3)])
    served.threads.submit(lambda: None).result()
    assert [rows for rows, _ in replied.values()] == [1, 2, 3]
    assert [float(read(replied[number][1]).predictions["output"][0, 0]) for number in (1, 2, 3)] == [2, 4, 6]


def test_the_worker_measures_its_turns() -> None:
    """What each turn took is known, by its number of calls. A slow one lets the next one run meanwhile."""
    served = worker(Counts())
    calls = Calls(served, lambda *_: None)
    calls.run([message(number) for number in (1, 2, 3)])
    calls.run([message(4)])
    served.threads.submit(lambda: None).result()
    assert sorted(size for size, seconds in calls._cost._measured if seconds > 0) == [1, 3]


def test_a_fault_of_the_worker_is_a_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of the turn is answered, and the thread goes on."""
    asked = worker(Counts())
    replied: dict[int, Parts] = {}
    calls = Calls(asked, replied.__setitem__)

    def broken(turn: Sequence[Call], reply: Callable[[int, Parts], None], later: Any) -> None:
        Worker.run(asked, turn[:1], reply, later)
        raise RuntimeError("a fault")

    with monkeypatch.context() as patch:
        patch.setattr(asked, "run", broken)
        calls.run([message(number) for number in (1, 2, 3)])
        asked.threads.submit(lambda: None).result()
    assert float(read(b"".join(replied[1])).predictions["output"][0, 0]) == 2
    for number in (2, 3):
        with pytest.raises(CutawayError, match="a fault") as caught:
            read(b"".join(replied[number]))
        assert caught.value.reason == "INTERNAL"
    calls.run([message(4)])
    asked.threads.put(Job(lambda: 1 / 0))
    asked.threads.submit(lambda: None).result(PATIENCE_S)
    assert float(read(b"".join(replied[4])).predictions["output"][0, 0]) == 8
    assert len(calls) == 0


def message(number: int) -> worker_pb2.WorkerCall:
    call = row({"x": torch.full((1, 2), float(number))})
    return worker_pb2.WorkerCall(number=number, inspect=call.payload)


@pytest.mark.parametrize("alone", [False, True])
def test_calls_beside_one_that_lost_the_gpu_are_not_failed(monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    """The worker ends before it replies, and other workers run each call alone; there, the reply comes first."""
    monkeypatch.setattr(calls_module, "is_lost", lambda device: True)  # that a GPU is lost, only a GPU can show
    events: list[str] = []
    served = worker(Counts())
    calls = Calls(served, lambda *_: events.append("reply"), unsound=lambda: events.append("end"))
    calls.run([message(1)], alone=alone)
    served.threads.submit(lambda: None).result()
    assert events[0] == ("reply" if alone else "end")
