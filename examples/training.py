"""How the examples train, so that a network is the same one each time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def reproducible(seed: int = 0) -> Iterator[None]:
    """A fixed seed, and one thread: sums come out the same however many cores there are, and small tensors take a
    quarter of the processor time. Nobody else notices."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
