"""`Proofs`: which tests of a model found nothing, in a form that outlives the process, and the time that tests took.

A test that found a fault is not kept: it is made again. So what is kept never makes a verdict worse.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from cutaway.contract.results import Timings
from cutaway.engine.model.session import own_seconds

T = TypeVar("T")


class Proofs:
    """A record of the tests of one model.

    Attributes:
        sound: the keys of tests that found nothing, as texts.
        faulty: the keys of those that found something after all, on later inputs: they are not sound again.
        axes: the axes of rows and channels that `cutaway.engine.hooks.axes` found, as JSON, by kind of inputs.
        rehearses: whether the requests under way are nobody's: they count no use of a test, and what a test finds is
            not kept.
        seconds: the time that all tests have taken.
    """

    def __init__(self) -> None:
        self.sound: set[str] = set()
        self.faulty: set[str] = set()
        self.axes: dict[str, Any] = {}
        self.rehearses = False
        self.seconds = 0.0
        self._hollow = 0

    def is_sound(self, key: Hashable) -> bool:
        """Returns whether the test with ``key`` is known to find nothing."""
        return text_of(key) in self.sound

    def proves_nothing(self) -> None:
        """Notes that the test under way could not run in full: that it finds nothing holds for this process only."""
        self._hollow += 1

    def run(self, test: Callable[[], T], key: Hashable = None) -> tuple[T, bool]:
        """Runs a test, and keeps under ``key`` that it found nothing.

        Args:
            test: returns what is false if nothing is wrong.
            key: None for a test that is not kept.

        Returns:
            What it found, and whether it could run in full.
        """
        hollow = self._hollow
        with self._timed():
            found = test()
        is_whole = self._hollow == hollow
        if found or is_whole:
            self.keep(key, sound=not found)
        return found, is_whole

    def keep(self, key: Hashable, *, sound: bool) -> None:
        """Notes the outcome of the test with ``key``; that it found a fault only where it is known to find nothing."""
        text = text_of(key)
        if sound and text and text not in self.faulty:
            self.sound.add(text)
        elif not sound and text in self.sound:
            self.sound.discard(text)
            self.faulty.add(text)

    @contextmanager
    def billed_to(self, timings: Timings) -> Iterator[None]:
        """Moves the time of the tests in the block, which checks make, to a stage of their own."""
        before = self.seconds
        try:
            yield
        finally:
            took_ms = (self.seconds - before) * 1000
            timings.proof_ms += took_ms
            timings.check_ms -= took_ms

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Keeps what belongs to the request under way while others run."""
        own = self.rehearses, self.seconds, self._hollow
        self.rehearses = False
        try:
            yield
        finally:
            self.rehearses, self.seconds, self._hollow = own

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Adds the time of the block to `seconds`: once for a test that runs another one."""
        start, before = own_seconds(), self.seconds
        try:
            yield
        finally:
            self.seconds = before + own_seconds() - start


def text_of(key: Hashable) -> str:
    """Returns ``key`` as a text that is the same in every process; ``""`` for None, and where there is none."""
    text = "" if key is None else _text_of(key)
    return "" if " at 0x" in text else text


def _text_of(part: object) -> str:
    if isinstance(part, (tuple, list)):
        return f"({', '.join(map(_text_of, part))})"
    if isinstance(part, frozenset):
        return f"{{{', '.join(sorted(map(_text_of, part)))}}}"
    name = getattr(part, "__qualname__", "")
    return f"{getattr(part, '__module__', '')}.{name}" if name else repr(part)
