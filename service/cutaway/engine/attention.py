"""One function for one model: PyTorch's fused attention stands aside."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()
_inside = 0
_before = True


@contextmanager
def one_path() -> Iterator[None]:
    """Switch the fast path of PyTorch's transformer layers off while any pass runs.

    It is taken where no gradient is built and no hook sits, hides modules from hooks and turns padded batches into
    nested tensors: the same question would run another function depending on what else is asked.
    The switch is the whole process's, and several models may run at once: the last one out puts it back.
    """
    global _inside, _before
    with _lock:
        if _inside == 0:
            _before = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                torch.backends.mha.set_fastpath_enabled(_before)
