"""The rows of one request inside a batch of several requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from torch import Tensor

from cutaway.engine.hooks.capture_spec import CapturedValues
from cutaway.engine.hooks.recording import RecordedCall
from cutaway.engine.runtime.pytree import Path
from cutaway.requests import Point


class CannotShare(Exception):
    """A tensor of a shared pass cannot be split by request: each request has to run alone."""


class RowRange(NamedTuple):
    """Rows of a batch, along axis 0.

    Attributes:
        start: the first row.
        stop: the row behind the last one.
        total: the number of rows of the batch.
    """

    start: int
    stop: int
    total: int

    def of(self, tensor: Tensor) -> Tensor:
        """Returns these rows of ``tensor`` ``[total, ...]``; the tensor itself where they are the whole batch.

        Raises:
            CannotShare: axis 0 is not the batch.
        """
        if self.stop - self.start == self.total:
            return tensor
        if tensor.shape[:1] != (self.total,):
            raise CannotShare
        return tensor[self.start : self.stop]

    def of_copies(self, tensor: Tensor) -> Tensor:
        """Returns these rows of ``tensor`` ``[copies * total, ...]``, which holds the batch once or several times, one
        copy after the other."""
        copies, rest = divmod(len(tensor), self.total) if tensor.ndim else (0, 1)
        if rest or not copies:
            raise CannotShare
        by_copy = tensor.reshape(copies, self.total, *tensor.shape[1:])
        return by_copy[:, self.start : self.stop].reshape(-1, *tensor.shape[1:])


def consecutive(sizes: Sequence[int]) -> list[RowRange]:
    """Returns the rows of each request in a batch of requests of ``sizes`` rows, one behind the other."""
    return [RowRange(stop - size, stop, sum(sizes)) for size, stop in zip(sizes, accumulate(sizes))]


def call_with(call: RecordedCall, parts: Iterable[tuple[Point, Path, CapturedValues | None]]) -> RecordedCall:
    """Returns a record of ``call`` that holds ``parts`` instead of its own."""
    changed = RecordedCall(call.number)
    changed.dtypes = call.dtypes
    for point, path, part in parts:
        changed.store(point, path, part)
    return changed
