"""Copies of a batch that come in one, row by row: Captum draws all samples of an example side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cutaway.requests import Add, Edit, Mix, Replace

MAX_SAMPLES = 4096
"""The most samples of an example."""


def apart(tensors: Sequence[Tensor], copies: int) -> list[tuple[Tensor, ...]]:
    """Tensors of [batch x copies, ...], row by row, as ``copies`` batches, each with its rows in their places."""
    return [tuple(tensor[number::copies] for tensor in tensors) for number in range(copies)]


def together(batches: Sequence[Tensor]) -> Tensor:
    """[batch, ...] each, as [batch x copies, ...], row by row."""
    return torch.stack(tuple(batches), dim=1).flatten(0, 1)


def one_at_a_time(forward: Callable[..., Tensor], copies: int) -> Callable[..., Tensor]:
    """``forward``, run for each of ``copies`` of a batch by itself: what edits and targets say of a row is then said of
    that row."""

    def each(*tensors: Tensor) -> Tensor:
        return together([forward(*batch) for batch in apart(tensors, copies)])

    return each


def tells_rows_apart(edit: Edit) -> bool:
    """Whether ``edit`` means rows by their numbers, which they have only in a pass of the batch by itself."""
    holds_tensor = isinstance(edit, Replace) or (isinstance(edit, Add) and not isinstance(edit.addend, (int, float)))
    return bool(edit.rows or edit.slices or holds_tensor or isinstance(edit, Mix))
