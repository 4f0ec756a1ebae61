"""How far the attributions of a request are, and how long the rest takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cutaway.contract.results import Progress
from cutaway.engine.execution import collect


class Clock:
    """Seconds, which a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


def told(monkeypatch: pytest.MonkeyPatch, passes: list[int], seconds: list[list[float]]) -> list[Progress]:
    """The progress of attributions with the expected ``passes``, of which each takes the ``seconds`` of its passes."""
    clock, found = Clock(), list[Progress]()
    monkeypatch.setattr(collect, "time", clock)
    monkeypatch.setattr(collect, "FIRST_S", 0.0)
    listener = SimpleNamespace(passes=passes, progress=found.append)
    plan: Any = SimpleNamespace(numbers=range(len(passes)), failed={}, rows=2, listener=listener)
    meter = collect._Meter([plan])
    for attribution in seconds:
        meter.next_attribution()
        for each in attribution:
            clock.now += each
            inputs: Any = {"x": [0, 0]}
            meter.ran(inputs)
    return found


CASES: dict[str, tuple[list[int], list[list[float]]]] = {
    "as expected": ([2, 2], [[1, 1], [1, 1]]),
    "slower passes later": ([2, 4], [[1, 1], [9, 9, 9, 9]]),
    "more passes than expected": ([2, 2], [[1] * 9, [1, 1]]),
    "nothing expected of the first": ([0, 4], [[1, 1], [1, 1, 1, 1]]),
    "faster passes later": ([2, 4], [[9, 9], [1, 1, 1, 1]]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_time_that_is_left_never_rises(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """An estimate that was too small stands still until the passes are there where it said."""
    passes, seconds = CASES[case]
    left = [each.seconds_left for each in told(monkeypatch, passes, seconds)]
    assert left == sorted(left, reverse=True)
    assert left[0] > 0
    assert left[-1] == 0


def test_the_time_that_is_left_is_that_of_the_passes_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(monkeypatch, [2, 2], [[3, 3], [3, 3]])
    assert [each.seconds_left for each in found] == [9, 6, 3, 0]
