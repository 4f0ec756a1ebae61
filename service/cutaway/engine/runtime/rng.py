"""Random numbers from a seed for one attribution; afterwards all generators continue as if nothing had been drawn."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

LARGEST_SEED = 2**63 - 1

ModelStream: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Returns a context for a forward pass in which the model draws from a stream of its own."""


def new_seed() -> int:
    """Returns a random seed without the use of PyTorch's or NumPy's generators."""
    return secrets.randbelow(LARGEST_SEED + 1)


def numpy_seed(seed: int) -> int:
    """Returns ``seed`` in 32 bits, as NumPy's generator needs it."""
    return seed % 2**32


@contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[ModelStream]:
    """Seeds the generators while the block runs: the same seed gives the same numbers, whatever the model draws.

    Captum draws between the model's passes, from PyTorch's generators and from NumPy's. A model that draws too (dropout
    that ignores evaluation mode) would advance these, so that Captum's numbers could not be repeated: therefore the
    model draws from streams of its own.

    Args:
        seed: None leaves all generators as they are.
        device: the model's device.

    Yields:
        A function that returns a context manager. Run each forward pass of the model inside one: there the model draws
        from its own streams, and Captum's generators do not advance.
    """
    if seed is None:
        yield nullcontext
        return
    with ExitStack() as ends:
        ends.enter_context(kept_rng_state(device))
        ends.callback(np.random.set_state, np.random.get_state())
        _seed((seed + 1) & LARGEST_SEED, device)
        model_states = _states(device)

        @contextmanager
        def model_stream() -> Iterator[None]:
            nonlocal model_states
            captum_states = _states(device)
            _restore(model_states, device)
            try:
                yield
            finally:
                model_states = _states(device)
                _restore(captum_states, device)

        _seed(seed, device)
        yield model_stream


def kept_rng_state(device: torch.device) -> AbstractContextManager[None]:
    """Returns a context after which PyTorch's generators continue as before it."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


_States: TypeAlias = tuple[Tensor, Any, "Tensor | None"]
"""The states of all generators from which a model on one device can draw."""


def _states(device: torch.device) -> _States:
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return torch.get_rng_state(), np.random.get_state(), cuda


def fingerprint(device: torch.device) -> tuple[object, ...]:
    """Returns what changes whenever a model draws from a generator of PyTorch, NumPy or Python."""
    host, (_, keys, position, *_), cuda = _states(device)
    bytes_of = [bytes(state.numpy()) for state in (host, cuda) if state is not None]
    return *bytes_of, keys.tobytes(), position, random.getstate()


def _restore(states: _States, device: torch.device) -> None:
    host, numpy, cuda = states
    torch.set_rng_state(host)
    np.random.set_state(numpy)
    if cuda is not None:
        torch.cuda.set_rng_state(cuda, device)


def _seed(seed: int, device: torch.device) -> None:
    torch.default_generator.manual_seed(seed)
    np.random.seed(numpy_seed(seed))
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
