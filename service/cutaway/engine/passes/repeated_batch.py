"""Several batches in one, and several copies of a batch: Captum puts all copies of a row next to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Shaped
from torch import Tensor

from cutaway.contract.requests import Add, Edit, Mix, Replace

MAX_SAMPLES = 4096
"""The most samples, and so copies, of a row."""


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
