"""The GPUs of workers: which one a worker gets, whether it still answers, and the memory for requests there."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from cutaway.server.memory import MemoryPool, RequestMemory

_OWN, _SHARED = 16, 2
"""The divisors of a GPU's memory that give a worker's own memory for requests, and the pool of all its workers."""


def gpu_in_turn(number: int) -> int | None:
    """Returns the GPU of the worker ``number``, or None where torch finds none: workers take the GPUs in turn."""
    return number % torch.cuda.device_count() if torch.cuda.is_available() else None


def device_of(gpu: int | None) -> str:
    """Returns the name of a GPU as a device, or ``cpu`` for None and where torch finds no GPU."""
    return "cpu" if gpu is None or not torch.cuda.is_available() else f"cuda:{gpu}"


def is_lost(device: torch.device) -> bool:
    """Returns whether ``device`` refuses all further work of this process.

    A kernel that reads beyond a tensor, as an embedding of a token that does not exist, ends CUDA in its process:
    https://docs.pytorch.org/docs/stable/notes/cuda.html
    """
    if device.type != "cuda":
        return False
    try:
        torch.cuda.current_stream(device).query()
    except RuntimeError:
        return True
    return False


def request_memory(device: torch.device, directory: Path | None) -> RequestMemory:
    """Returns the memory that requests may take on a GPU, beyond the weights of all models there.

    Args:
        device: the GPU.
        directory: where workers of this server share a pool; None for a process whose models share all of it.
    """
    total = torch.cuda.get_device_properties(device).total_memory
    if directory is None or sys.platform != "linux":
        return RequestMemory(total // _SHARED, give_back=torch.cuda.empty_cache)
    pool = MemoryPool(directory / f"memory-{device.index}", total // _SHARED)
    return RequestMemory(total // _OWN, pool, give_back=torch.cuda.empty_cache)
