"""Deadline and cancellation of a call: no further pass begins for a caller that no longer waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from cutaway.contract.errors import Reason, error
from cutaway.contract.results import Timings


class Cancellation(NamedTuple):
    """When a call ends before its reply.

    Attributes:
        deadline: in Unix seconds; None for no deadline.
        hung_up: returns whether the caller has cancelled the call.
    """

    deadline: float | None = None
    hung_up: Callable[[], bool] = lambda: False

    @property
    def is_cancelled(self) -> bool:
        """Whether the caller no longer waits."""
        return (self.deadline is not None and time.time() > self.deadline) or self.hung_up()

    def raise_if_cancelled(self) -> None:
        """Raises ``DEADLINE_EXCEEDED`` if the caller no longer waits."""
        if self.is_cancelled:
            why = "the caller hung up" if self.hung_up() else "the deadline passed"
            raise error(Reason.DEADLINE_EXCEEDED, f"{why} while the call was at work")


NEVER_CANCELLED = Cancellation()


def latest(cancellations: Sequence[Cancellation]) -> Cancellation:
    """Returns the cancellation of several calls that share their passes: all must be cancelled."""
    deadlines = [each.deadline for each in cancellations]
    deadline = None if None in deadlines else max(each for each in deadlines if each is not None)
    return Cancellation(deadline, lambda: all(each.is_cancelled for each in cancellations))


# Recognises that memory ran out.


def is_out_of_memory(failure: BaseException) -> bool:
    """Returns whether ``failure`` reports too little memory, on the host or on a device."""
    # PyTorch's allocator for the host has no exception class of its own for that.
    return isinstance(failure, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(failure)


# Measures the stages of a request.


@contextmanager
def timed(timings: Timings, stage: str) -> Iterator[None]:
    """Adds the wall-clock time of the block, in milliseconds, to the field ``stage`` of ``timings``."""
    start = time.perf_counter()
    try:
        yield
    finally:
        setattr(timings, stage, getattr(timings, stage) + (time.perf_counter() - start) * 1000)
