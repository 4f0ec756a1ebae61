"""The simulation of docs/scaling.md, against what can be computed by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest
import simpy

from bench.scaling.burst import BEFORE_S, BURST_S, KUBERNETES, MOST, RAY, burst
from bench.scaling.costs import Cost, Costs, TurnCosts
from bench.scaling.simulation import Batches, Cores, _varied, closed_loop

NOTHING = Cost(0.0, 0.0)
SPREAD = 0.1
"""Of the pieces of work."""

NEAR = 0.05
"""Their means do not vary."""


def costs(gateway: Cost = NOTHING, worker: Cost = NOTHING, loader: Cost = NOTHING, idle: float = 0.0) -> Costs:
    turns = TurnCosts((1, 32), (worker.of(1), worker.of(32)))
    return Costs(loader, gateway, turns, idle, SPREAD, 300, 13_000, 60 << 20, 5.0)


def test_costs_of_turns_between_those_that_were_measured() -> None:
    turns = TurnCosts((1.0, 2.0, 10.0), (3.0, 5.0, 9.0))
    assert [turns.of(size) for size in (1, 2, 6, 10, 32)] == [3, 5, 7, 9, 20]
    assert turns.each(6) == pytest.approx(7 / 6)


def test_times_vary_as_much_as_they_were_seen_to() -> None:
    random.seed(0)
    seconds = np.array([_varied(2.0, 0.3) for _ in range(20_000)])
    assert (seconds.mean(), seconds.std() / seconds.mean()) == pytest.approx((2.0, 0.3), rel=NEAR)


def test_what_varies_more_answers_less() -> None:
    """A process waits more often for the others."""
    asked = costs(Cost(0.0, 0.01), Cost(0.0, 0.01))
    assert closed_loop(asked._replace(spread=0.6), 2).rate < 0.95 * closed_loop(asked._replace(spread=0.0), 2).rate


def test_a_lone_call_takes_what_its_processes_take() -> None:
    """One after the other, and the time in which nobody works."""
    found = closed_loop(costs(Cost(0.001, 0.002), Cost(0.003, 0.004), Cost(0.0, 0.005), idle=0.006), 1)
    assert found.latency == pytest.approx(0.021, rel=NEAR)
    assert found.rate == pytest.approx(1 / 0.021, rel=NEAR)
    assert found.turn == 1


def test_work_after_the_reply_is_not_waited_for() -> None:
    """A lone caller waits less than the processes work."""
    found = closed_loop(costs(Cost(0.0, 0.004), Cost(0.0, 0.004), Cost(0.0, 0.002), idle=-0.001), 1)
    assert found.latency == pytest.approx(0.009, rel=NEAR)


@pytest.mark.parametrize(
    ("gateway", "worker", "rate"),
    [
        (Cost(0.0, 0.01), Cost(0.0, 0.001), 100),  # one thread
        (Cost(0.0, 0.001), Cost(0.0, 0.01), 100),
        (Cost(0.0, 0.001), Cost(0.032, 0.009), 100),  # in full turns
    ],
)
def test_with_many_callers_the_slowest_process_is_always_busy(gateway: Cost, worker: Cost, rate: float) -> None:
    found = closed_loop(costs(gateway, worker), 64)
    assert found.rate == pytest.approx(rate, rel=NEAR)
    assert found.latency == pytest.approx(64 / rate, rel=2 * NEAR)  # Little's law


def test_processes_share_the_cores() -> None:
    """Two busy ones on one core: half of what each could do alone; and two cores are enough for both."""
    asked = costs(Cost(0.0, 0.01), Cost(0.0, 0.01))
    assert closed_loop(asked, 32, cores=1).rate == pytest.approx(50, rel=NEAR)
    assert closed_loop(asked, 32, cores=2).rate == pytest.approx(100, rel=NEAR)


def test_a_share_of_a_core_changes_when_others_come() -> None:
    """A piece of 1 s; another one comes after half of it, on one core: both end later."""
    env = simpy.Environment()
    cores, ends = Cores(env, 1), {}

    def piece(name: str, begin: float, seconds: float) -> simpy.events.ProcessGenerator:
        yield env.timeout(begin)
        yield cores.work(seconds)
        ends[name] = env.now

    for each in (("first", 0.0, 1.0), ("second", 0.5, 0.25), ("third", 5.0, 1.0)):
        env.process(piece(*each))
    env.run()
    assert ends == pytest.approx({"first": 1.25, "second": 1.0, "third": 6.0})


def test_turns_form_as_in_the_gateway() -> None:
    """What tests/integration/gateway/test_overload.py sees of the real one."""
    batches = Batches()
    sizes = []

    def come(calls: int) -> None:
        for _ in range(calls):
            batches.waiting.append(0)
            if turn := batches.next_turn():
                sizes.append(len(turn))

    def end(size: int) -> None:
        batches.running.remove(size)
        while turn := batches.next_turn():
            sizes.append(len(turn))

    come(7)
    end(1)
    assert sizes == [1, 1, 5]
    end(1)
    come(4)
    assert sizes == [1, 1, 5]
    come(1)
    assert sizes == [1, 1, 5, 5]
    end(5)
    come(3)
    end(5)
    assert sizes == [1, 1, 5, 5, 3]


@pytest.mark.slow
@pytest.mark.parametrize("policy", [KUBERNETES, RAY])
def test_a_burst_brings_workers_and_ends(policy: object) -> None:
    """Two workers of 100 calls a second, and 200 a second at once: calls wait, or are refused, until workers have come
    and no longer."""
    assert policy in (KUBERNETES, RAY)
    chosen = KUBERNETES if policy == KUBERNETES else RAY
    seconds = burst(costs(worker=Cost(0.0, 0.01)), chosen, 50.0)
    before = [each for each in seconds if each.at <= BEFORE_S]
    during = [each for each in seconds if BEFORE_S < each.at <= BEFORE_S + BURST_S]
    assert all((each.workers, each.refused) == (2, 0) and each.latency < 0.05 for each in before)
    assert sum(each.refused for each in during[:10]) > 0
    assert max(each.workers for each in seconds) == MOST
    assert sum(each.refused for each in during[-10:]) == 0
    assert during[-1].latency < 0.1 < max(each.latency for each in during)
