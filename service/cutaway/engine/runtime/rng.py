"""Random numbers from a seed for one attribution; afterwards all generators continue as if nothing had been drawn."""

from __future__ import annotations

import inspect
import random
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

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
    that ignores evaluation mode) would advance these, and Captum's numbers could not be repeated. Therefore the model
    draws from streams of its own.

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


@contextmanager
def reseeded(device: torch.device) -> Iterator[None]:
    """Gives the generators of PyTorch, NumPy and Python a new random seed while the block runs; they continue as before
    it afterwards."""
    states, python = _states(device), random.getstate()
    seed = new_seed()
    _seed(seed, device)
    random.seed(seed)
    try:
        yield
    finally:
        _restore(states, device)
        random.setstate(python)


_States: TypeAlias = tuple[Tensor, Any, "Tensor | None"]
"""The states of all generators from which a model on one device can draw."""


def _states(device: torch.device) -> _States:
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return torch.get_rng_state(), np.random.get_state(), cuda


def fingerprint(device: torch.device, own: Sequence[object] = ()) -> tuple[object, ...]:
    """Returns what changes whenever a model draws from a generator of PyTorch, NumPy or Python, or from its ``own``."""
    host, (_, keys, position, *_), cuda = _states(device)
    bytes_of = [bytes(state.numpy()) for state in (host, cuda) if state is not None]
    return *bytes_of, keys.tobytes(), position, random.getstate(), *map(_state_of, own)


def own_generators(module: nn.Module) -> list[object]:
    """Returns the generators that a model keeps, as far as a few steps lead.

    They lie on its modules, in objects there, and in the variables of its functions.
    """
    generators: dict[int, object] = {}
    known: set[int] = set()
    waiting: list[object] = [value for part in module.modules() for value in (*vars(part).values(), type(part).forward)]
    for _ in range(_STEPS):
        new = [value for value in waiting if id(value) not in known]
        known |= set(map(id, new))
        generators |= {id(value): value for value in new if isinstance(value, _GENERATORS)}
        waiting = [inner for value in new for inner in _held_by(value)]
    return list(generators.values())


_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)

_STEPS = 6


def _held_by(value: Any) -> Iterable[object]:
    """Returns what an object of the model's own holds; nothing for modules, classes, tensors and generators."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, (FunctionType, MethodType)):
        with suppress(ValueError):  # a variable without a value
            variables = inspect.getclosurevars(value)
            return [getattr(value, "__self__", None), *variables.nonlocals.values(), *variables.globals.values()]
        return ()
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, (ModuleType, type, Tensor, nn.Module, *_GENERATORS)):
        return ()
    return [*getattr(value, "__dict__", {}).values(), vars(type(value)).get("__call__")]


def _state_of(generator: Any) -> object:
    if isinstance(generator, torch.Generator):
        return bytes(generator.get_state().numpy())
    if isinstance(generator, random.Random):
        return generator.getstate()
    bits = generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state()
    return repr(bits)


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
