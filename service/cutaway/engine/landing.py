"""Copies on the host of what hooks see: one each, made when the hook fires, in the memory it will be sent from.

From a GPU they go into pinned memory, and the pass runs on meanwhile: whoever reads them waits first.
https://docs.pytorch.org/docs/stable/notes/cuda.html#use-pinned-memory-buffers
"""

from __future__ import annotations

import torch
from torch import Tensor

_HOST = torch.device("cpu")


def on_host(tensor: Tensor) -> Tensor:
    """A copy of ``tensor``'s values now, outside of any graph, on the host; of one without values, itself."""
    return tensor if tensor.is_meta else _values(tensor).to(_HOST, copy=True)


class Landing:
    """Copies that may be on their way from a GPU."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def on_host(self, tensor: Tensor) -> Tensor:
        """As `on_host`; the values are there once `wait` has returned."""
        if tensor.device.type != "cuda":
            return on_host(tensor)
        values = _values(tensor)
        copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        copy.copy_(values, non_blocking=True)
        # On the stream that the copy is queued on, where it also precedes whatever overwrites the tensor.
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(values.device))
        self._events.append(event)
        return copy

    def wait(self) -> None:
        """Until every copy has arrived."""
        while self._events:
            self._events.pop().synchronize()


def _values(tensor: Tensor) -> Tensor:
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.detach()
