"""Memory that runs out."""

from __future__ import annotations

import torch


def ran_out(failure: BaseException) -> bool:
    """Whether ``failure`` says that there is too little memory, on the host or on a device."""
    # PyTorch's allocator of the host has no class of its own for that.
    return isinstance(failure, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(failure)
