"""Random numbers from a seed, after which all generators continue as if nothing had been drawn; random tensors."""

from __future__ import annotations

import inspect
import random
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

LARGEST_SEED = 2**63 - 1


def new_seed() -> int:
    """Returns a random seed without the use of PyTorch's or NumPy's generators."""
    return secrets.randbelow(LARGEST_SEED + 1)


def numpy_seed(seed: int) -> int:
    """Returns ``seed`` in 32 bits, as NumPy's generator needs it."""
    return seed % 2**32


PATIENCE_S = 0.5
"""How long a thread waits for the generators while a pass of another thread's model is at work."""


class _Holder:
    """Gives the generators of this process, from which all its models draw, to one thread at a time, in turn.

    A thread whose forward pass takes long, or never ends, loses them meanwhile, and has them back behind the pass: most
    models draw nothing in it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread = self._depth = 0
        self._waiting: deque[tuple[int, int, threading.Semaphore]] = deque()
        self._lost: dict[int, int] = {}
        self._passing: set[int] = set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the generators during the block; waits until the threads before this one lend, lose or need no more."""
        self._take(1)
        try:
            yield
        finally:
            self._drop(1)

    def is_wanted(self) -> bool:
        """Returns whether this thread holds the generators, and another one waits for them."""
        return bool(self._waiting) and self._thread == threading.get_ident()

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Runs a forward pass, during which this thread may lose the generators; it has them back behind it."""
        own = threading.get_ident()
        self._passing.add(own)
        try:
            yield
        finally:
            self._passing.discard(own)
            if own in self._lost:
                self._take(0)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Lets other threads have the generators during the block."""
        own = threading.get_ident()
        with self._lock:
            depth = self._lost.pop(own, self._depth if self._thread == own else 0)
        self._drop(depth if self._thread == own else 0)
        try:
            yield
        finally:
            self._take(depth)

    def _take(self, depth: int) -> None:
        """Holds the generators ``depth`` times more, and as often as this thread has lost them."""
        own, turn = threading.get_ident(), threading.Semaphore(0)
        with self._lock:
            depth += self._lost.pop(own, 0)
            if not depth:
                return
            if self._thread in (0, own):
                self._thread, self._depth = own, self._depth + depth
                return
            self._waiting.append((own, depth, turn))
        while not turn.acquire(timeout=PATIENCE_S):
            with self._lock:
                if self._waiting and self._waiting[0][0] == own and self._may_lose():
                    self._lost[self._thread] = self._depth
                    self._hand_over()

    def _may_lose(self) -> bool:
        """Returns whether the holder is in a forward pass, or is no thread of this process, which was forked."""
        return self._thread in self._passing or all(one.ident != self._thread for one in threading.enumerate())

    def _drop(self, depth: int) -> None:
        """Holds the generators ``depth`` times less."""
        own = threading.get_ident()
        with self._lock:
            if own in self._lost:
                self._lost[own] -= depth
                if not self._lost[own]:
                    del self._lost[own]
                return
            self._depth -= depth
            if depth and not self._depth:
                self._hand_over()

    def _hand_over(self) -> None:
        """Gives the generators to the thread that has waited longest, or to nobody; with the lock."""
        self._thread = self._depth = 0
        if self._waiting:
            self._thread, self._depth, turn = self._waiting.popleft()
            turn.release()


_generators = _Holder()

held, lent, passing, are_wanted = _generators.held, _generators.lent, _generators.passing, _generators.is_wanted


@contextmanager
def seeded(seed: int, device: torch.device, own: Sequence[object] = ()) -> Iterator[None]:
    """Seeds all generators while the block runs, as `seed_generators`; they continue as before it afterwards."""
    with kept_rng_state(device, own):
        seed_generators(seed, device, own)
        yield


@contextmanager
def kept_rng_state(device: torch.device, own: Sequence[object] = ()) -> Iterator[None]:
    """Keeps the state of the generators of PyTorch, NumPy and Python, and of a model's ``own``, over a block.

    No other thread has such a block meanwhile, unless this one lends the generators.
    """
    with _generators.held():
        states, of_python, of_own = _states(device), random.getstate(), [*map(_state_of, own)]
        try:
            yield
        finally:
            _restore(states, device)
            random.setstate(of_python)
            for generator, state in zip(own, of_own):
                _set_state(generator, state)


def seed_generators(seed: int, device: torch.device, own: Sequence[object] = ()) -> None:
    """Seeds the generators of PyTorch, NumPy and Python, and a model's ``own``, as their own functions do.

    Args:
        seed: of 63 bits; NumPy's generators get 32 of them.
        device: the model's device.
        own: what `own_generators` returned.
    """
    torch.default_generator.manual_seed(seed)
    np.random.seed(numpy_seed(seed))
    random.seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    for generator in own:
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = type(generator.bit_generator)(seed).state
        elif isinstance(generator, np.random.RandomState):
            generator.seed(numpy_seed(seed))
        elif isinstance(generator, random.Random):
            generator.seed(seed)


_States: TypeAlias = tuple[Tensor, Any, "Tensor | None"]
"""The states of all generators from which a model on one device can draw."""


def _states(device: torch.device) -> _States:
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return torch.get_rng_state(), np.random.get_state(), cuda


def fingerprint(device: torch.device, own: Sequence[object] = ()) -> tuple[object, ...]:
    """Returns what changes whenever a model draws from a generator of PyTorch, NumPy or Python, or from its ``own``."""
    host, (_, keys, position, *_), cuda = _states(device)
    bytes_of = [bytes(state.numpy()) for state in (host, cuda) if state is not None]
    of_own = (bytes(state.numpy()) if isinstance(state, Tensor) else repr(state) for state in map(_state_of, own))
    return *bytes_of, keys.tobytes(), position, random.getstate(), *of_own


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
    return [generator for generator in generators.values() if not isinstance(generator, random.SystemRandom)]


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


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def _restore(states: _States, device: torch.device) -> None:
    host, numpy, cuda = states
    torch.set_rng_state(host)
    np.random.set_state(numpy)
    if cuda is not None:
        torch.cuda.set_rng_state(cuda, device)


# Random tensors near others, and along others, from generators of their own.


def normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Returns normally distributed numbers in the shape and data type of ``like``."""
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)


def moved(look: int) -> Callable[[Tensor], Tensor]:
    """Returns a function that shifts values at random, by the square root of their precision; or, if ``look`` is
    negative, by about one rounding. ``look`` is the seed; 0 shifts nothing. What would leave the type's range stays."""
    generator = torch.Generator().manual_seed(abs(look))

    def move(tensor: Tensor) -> Tensor:
        if not look:
            return tensor
        size: float = torch.finfo(tensor.dtype).eps ** (0.5 if look > 0 else 1)
        shifted = tensor + tensor * normal(tensor, generator) * size
        return torch.where(shifted.isfinite(), shifted, tensor)

    return move


def direction(value: Tensor, gradient: Tensor, generator: torch.Generator, uneven: bool) -> Tensor:
    """Returns random numbers of the size of ``value``, with the signs of ``gradient`` where that is not 0.

    An uneven one is mostly along a few rows, channels and positions: elsewhere, errors may cancel. All are shortened if
    one would leave the range of the type: float16 ends at 65,504.
    """
    exact = value.detach().double()
    drawn = normal(exact, generator) * (float(value.abs().mean()) or 1.0)
    for axis in range(value.ndim if uneven else 0):
        along = [size if each == axis else 1 for each, size in enumerate(value.shape)]
        drawn = drawn * normal(exact.new_empty(along), generator) ** 3
    longest = float(drawn.abs().amax()) if drawn.numel() else 0.0
    drawn = (drawn * min(1.0, torch.finfo(value.dtype).max / 2 / (longest or 1.0))).to(value)
    return torch.where(gradient == 0, drawn, drawn.abs() * gradient.sign())
