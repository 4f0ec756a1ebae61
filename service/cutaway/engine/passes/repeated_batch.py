"""Several batches in one, and several copies of a batch: Captum puts all copies of a row next to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor

from cutaway.contract.requests import Add, Edit, Mix, Replace

MAX_SAMPLES = 4096
"""The most samples, and so copies, of a row."""


class CannotShare(Exception):
    """A tensor of a shared pass cannot be split by request: each request has to run alone."""


class RowRange(NamedTuple):
    """The rows of one request inside a batch of several requests, along axis 0.

    Attributes:
        start: the first row.
        stop: the row behind the last one.
        total: the number of rows of the batch.
    """

    start: int
    stop: int
    total: int

    @property
    def is_whole(self) -> bool:
        """Whether these are all rows of the batch."""
        return self.stop - self.start == self.total

    def of(self, tensor: Tensor) -> Tensor:
        """Returns these rows of ``tensor`` ``[total, ...]``; the tensor itself where they are the whole batch.

        Raises:
            CannotShare: axis 0 is not the batch.
        """
        if self.is_whole:
            return tensor
        if tensor.shape[:1] != (self.total,):
            raise CannotShare
        return tensor[self.start : self.stop]

    def of_copies(self, tensor: Tensor) -> Tensor:
        """Returns these rows of ``tensor`` ``[copies * total, ...]``, which holds the batch several times, one copy
        after the other; raises as `of`."""
        if self.is_whole:
            return tensor
        copies, rest = divmod(len(tensor), self.total) if tensor.ndim else (0, 1)
        if rest or not copies:
            raise CannotShare
        by_copy = tensor.reshape(copies, self.total, *tensor.shape[1:])
        return by_copy[:, self.start : self.stop].flatten(0, 1)


def consecutive(sizes: Sequence[int]) -> list[RowRange]:
    """Returns the rows of each request in a batch of requests of ``sizes`` rows, one behind the other."""
    return [RowRange(stop - size, stop, sum(sizes)) for size, stop in zip(sizes, accumulate(sizes))]


def concatenated(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Returns the tensors of all ``parts`` by name, one behind the other along axis 0; of one part its own tensors."""
    return dict(parts[0]) if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def split_copies(tensors: Sequence[Tensor], copies: int) -> list[tuple[Tensor, ...]]:
    """Returns tensors ``[batch * copies, ...]`` as ``copies`` batches, ``[batch, ...]`` each."""
    return [tuple(tensor[number::copies] for tensor in tensors) for number in range(copies)]


def interleave_copies(batches: Sequence[Shaped[Tensor, "batch *axes"]]) -> Shaped[Tensor, "rows *axes"]:
    """Returns batches ``[batch, ...]`` as one tensor ``[batch * copies, ...]``; inverse of `split_copies`."""
    return torch.stack(tuple(batches), dim=1).flatten(0, 1)


def run_copies_separately(forward: Callable[..., Tensor], copies: int) -> Callable[..., Tensor]:
    """Returns ``forward`` with a pass for each of ``copies`` of a batch, so that edits and targets meet their rows."""

    def run(*tensors: Tensor) -> Tensor:
        return interleave_copies([forward(*batch) for batch in split_copies(tensors, copies)])

    return run


def is_row_specific_edit(edit: Edit) -> bool:
    """Whether ``edit`` differs from row to row, so that it needs passes of the batch as it is."""
    holds_tensor = isinstance(edit, Replace) or (isinstance(edit, Add) and not isinstance(edit.addend, (int, float)))
    return bool(edit.rows or edit.slices or holds_tensor or isinstance(edit, Mix))
