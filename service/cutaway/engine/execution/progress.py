"""Tells the listeners of requests the results so far, and how far the attributions are."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from cutaway.contract.results import InspectResult, Progress
from cutaway.engine.execution.generation import Tell
from cutaway.engine.model.inspected_model import Inputs
from cutaway.engine.model.session import EVERY_S, FIRST_S
from cutaway.engine.planning.plan import RequestPlan


@contextmanager
def telling(
    plans: Sequence[RequestPlan], split: Callable[[InspectResult], Sequence[InspectResult]]
) -> Iterator[Tell | None]:
    """Yields a function that sends a result so far to the listeners of ``plans``, which run together; None without
    listeners.

    Args:
        plans: the requests.
        split: returns the result of each of them.
    """
    if all(plan.listener is None for plan in plans):
        yield None
        return
    meter = _Meter(plans)

    def tell(result: InspectResult) -> None:
        for plan, own in zip(plans, split(result)):
            if plan.listener is not None:
                plan.listener.so_far(own)
        meter.next_attribution()

    with plans[0].model.passes.watched_by(meter.ran):
        yield tell


class _Meter:
    """A meter of the passes of requests that run together; more than the expected passes count as these.

    The time that is left never rises: where it was estimated too small, it stands still.
    """

    def __init__(self, plans: Sequence[RequestPlan]) -> None:
        first = plans[0]
        self._numbers = sorted({*first.numbers, *first.failed})
        self._listeners = [(plan.listener, plan.rows) for plan in plans if plan.listener is not None]
        self._rows = sum(plan.rows for plan in plans)
        by_number = dict(zip(first.numbers, self._listeners[0][0].passes))
        self._expected = [by_number.get(number, 0) for number in self._numbers]
        self._current = -1
        self._examples = 0
        self._began = self._told = 0.0
        self._left_s = math.inf

    def next_attribution(self) -> None:
        """Notes that the first attribution begins, or the next one."""
        if self._current < 0:
            self._began = time.perf_counter()
            self._told = self._began + FIRST_S - EVERY_S
        self._current, self._examples = self._current + 1, 0

    def ran(self, inputs: Inputs) -> None:
        """Counts a forward pass, and tells listeners if they heard nothing for a while."""
        self._examples += len(next(iter(inputs.values())))
        now = time.perf_counter()
        if now - self._told > EVERY_S and 0 <= self._current < len(self._numbers):
            self._told = now
            self._tell(now - self._began)

    def _tell(self, seconds: float) -> None:
        total = sum(self._expected)
        own = min(self._examples / self._rows, self._expected[self._current])
        done = sum(self._expected[: self._current]) + own
        if not done:  # nothing is known yet
            return
        self._left_s = min(self._left_s, seconds * (total - done) / done)
        for listener, rows in self._listeners:
            progress = Progress(round(done * rows), total * rows, self._left_s, self._numbers[self._current])
            listener.progress(progress)
