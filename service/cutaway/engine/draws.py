"""Random numbers from a seed, for one explanation; every generator is afterwards as it was before."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

LARGEST_SEED = 2**63 - 1

Aside: TypeAlias = Callable[[], AbstractContextManager[None]]
"""A context for the model's passes: what the model draws comes from a stream of its own."""


def fresh_seed() -> int:
    """A seed that nobody chose, drawn from no generator of PyTorch's or NumPy's."""
    return secrets.randbelow(LARGEST_SEED + 1)


def numpy_seed(seed: int) -> int:
    """``seed`` as NumPy's generator takes it, in 32 bits."""
    return seed % 2**32


@contextmanager
def drawing(seed: int | None, device: torch.device) -> Iterator[Aside]:
    """Draw from ``seed`` while the block runs: the same seed gives the same numbers, whatever the model inside draws.

    Captum draws in between the model's passes, from PyTorch's generators and from NumPy's. A model that draws too
    (dropout that ignores evaluation) would move them on, and nobody could say afterwards which numbers Captum got; so
    the model has streams of its own.
    """
    if seed is None:
        yield nullcontext
        return
    with _numpy_kept(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        models = _States.seeded((seed + 1) & LARGEST_SEED, device)

        @contextmanager
        def aside() -> Iterator[None]:
            nonlocal models
            captums = _States.now(device)
            models.restore(device)
            try:
                yield
            finally:
                models = _States.now(device)
                captums.restore(device)

        _States.seeded(seed, device)
        yield aside


@contextmanager
def _numpy_kept() -> Iterator[None]:
    before = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(before)


class _States(NamedTuple):
    """Where the generators that a model on one device draws from stand."""

    host: Tensor
    cuda: Tensor | None
    numpy: Any

    @classmethod
    def now(cls, device: torch.device) -> _States:
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(torch.get_rng_state(), cuda, np.random.get_state())

    @classmethod
    def seeded(cls, seed: int, device: torch.device) -> _States:
        torch.default_generator.manual_seed(seed)
        np.random.seed(numpy_seed(seed))
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        return cls.now(device)

    def restore(self, device: torch.device) -> None:
        torch.set_rng_state(self.host)
        np.random.set_state(self.numpy)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, device)
