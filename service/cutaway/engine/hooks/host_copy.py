"""Copies of captured tensors on the host, made while the hook runs.

Copies from a GPU go to pinned memory while the pass continues; a reader waits until they are complete.
https://docs.pytorch.org/docs/stable/notes/cuda.html#use-pinned-memory-buffers
"""

from __future__ import annotations

import torch
from torch import Tensor

_HOST = torch.device("cpu")


def copy_to_host(tensor: Tensor) -> Tensor:
    """Returns a copy on the host without a graph; a meta tensor, which has no values, is returned as it is."""
    return tensor if tensor.is_meta else _plain(tensor).to(_HOST, copy=True)


class PendingCopies:
    """Copies from a GPU that may not be complete yet."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def copy_to_host(self, tensor: Tensor) -> Tensor:
        """Returns a copy on the host as `copy_to_host` does, complete once `wait` has returned."""
        if tensor.device.type != "cuda":
            return copy_to_host(tensor)
        values = _plain(tensor)
        copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        copy.copy_(values, non_blocking=True)
        # On the stream of the copy, where the copy also runs before any operation that overwrites the tensor.
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(values.device))
        self._events.append(event)
        return copy

    def wait(self) -> None:
        """Waits until all copies are complete."""
        while self._events:
            self._events.pop().synchronize()


def _plain(tensor: Tensor) -> Tensor:
    """Returns the values without a graph and without lazy conjugation or negation."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.detach()
