"""The calls that wait to write tokens, and those that are written together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cutaway.engine.batching import MAX_TEXTS, Others, Outcome, joins, may_write_beside, writing_key
from cutaway.engine.planning.plan import RequestPlan
from cutaway.server.worker.call import Call, lacked_memory
from cutaway.server.worker.model_threads import ModelThreads


@dataclass(eq=False)
class Writer:
    """A call that writes tokens.

    Attributes:
        plan: the plan of its request.
        call: the call.
        tell: takes its outcome.
        stays_apart: whether its rows were seen to depend on others.
    """

    plan: RequestPlan
    call: Call
    tell: Callable[[Outcome], None]
    stays_apart: bool = False


class Writers:
    """The calls of a worker that wait to write tokens. Each has a job of its own, unless others take it along.

    Args:
        threads: run the model.
        fits: returns whether memory allows a request beside others.
        answer: answers calls that begin together, and those that join them.
    """

    def __init__(
        self,
        threads: ModelThreads,
        fits: Callable[[RequestPlan], bool],
        answer: Callable[[Sequence[Writer], Others | None], None],
    ) -> None:
        self._threads, self._fits, self._answer = threads, fits, answer
        self._waiting: list[Writer] = []
        self._together: _Together | None = None

    def put(self, writer: Writer) -> None:
        """Adds a call to those that wait; a job of the model's threads calls `run`."""
        self._waiting.append(writer)

    def run(self, writer: Writer) -> None:
        """Answers a call, with those that wait too. Does nothing if others have taken it along, or will."""
        if writer not in self._waiting:
            return
        if self._together is not None and self._together.may_take(writer) and joins(writer.plan):
            return
        left: Writer | None = writer
        while left is not None:
            together = _Together(self, left)
            is_open = self._together is None and together.may_take(left)
            if is_open:
                self._together = together
            try:
                self._answer(together.begin(left), together if is_open else None)
            except Exception as failure:  # no call of others may wait for its deadline
                for other in together.active:
                    other.tell(failure)
            finally:
                if is_open:
                    self._together = None
            for again in together.again:
                self._answer([again], None)
            relied = (other for other in self._waiting if is_open and together.is_alike(other))
            left = next(relied, None)  # its own job may have left it to these


class _Together(Others):
    """Calls that are written together, and those that may join them.

    Attributes:
        active: those that have no outcome yet.
        again: those that joined and lacked memory: they run once more, by themselves.
    """

    def __init__(self, writers: Writers, first: Writer) -> None:
        self._writers, self._key = writers, writing_key(first.plan)
        self.active: list[Writer] = []
        self.again: list[Writer] = []

    def may_take(self, writer: Writer) -> bool:
        """Returns whether a call may be written beside these."""
        plan = writer.plan
        return not writer.stays_apart and self.is_alike(writer) and may_write_beside(plan) and self._writers._fits(plan)

    def is_alike(self, writer: Writer) -> bool:
        """Returns whether a call has the kind of inputs of these."""
        return writing_key(writer.plan) == self._key

    def waiting(self) -> Iterator[Writer]:
        """Yields the calls that wait and may join."""
        return filter(self.may_take, self._writers._waiting)

    def begin(self, first: Writer) -> Sequence[Writer]:
        """Takes ``first``, and those that may begin with it; returns them."""
        taken, rows = [first], first.plan.rows
        for writer in [*self.waiting()] if self.may_take(first) else ():
            if writer is not first and rows + writer.plan.rows <= MAX_TEXTS:
                taken.append(writer)
                rows += writer.plan.rows
        for writer in taken:
            self._take(writer)
        return taken

    def first(self) -> RequestPlan | None:
        """Returns the request that has waited longest."""
        writer = next(self.waiting(), None)
        return None if writer is None else writer.plan

    def take(self) -> Callable[[Outcome], None]:
        """Takes that one; returns what takes its outcome."""
        writer = next(self.waiting())
        self._take(writer)

        def tell(outcome: Outcome) -> None:
            if lacked_memory(outcome):
                self.again.append(writer)
            else:
                writer.tell(outcome)

        return tell

    def pass_over(self) -> None:
        """Leaves that one to its own job."""
        next(self.waiting()).stays_apart = True

    def _take(self, writer: Writer) -> None:
        self._writers._waiting.remove(writer)
        self.active = [other for other in self.active if not other.plan.cancellation.is_cancelled]
        tell = writer.tell

        def told(outcome: Outcome) -> None:
            self.active = [other for other in self.active if other is not writer]
            tell(outcome)

        writer.tell = told
        self.active.append(writer)
        deadlines = [other.call.cancellation.deadline or math.inf for other in self.active]
        self._writers._threads.serve([other.call.caller for other in self.active], max(deadlines))
