"""Recognises that memory ran out."""

from __future__ import annotations

import torch


def is_out_of_memory(failure: BaseException) -> bool:
    """Returns whether ``failure`` reports too little memory, on the host or on a device."""
    # PyTorch's allocator for the host has no exception class of its own for that.
    return isinstance(failure, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(failure)
