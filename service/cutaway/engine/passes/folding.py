"""References that are computed pass by pass: what a check keeps does not grow with the number of passes."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Generic, TypeAlias, TypeVar

from cutaway.engine.passes.pass_recorder import AttributionProblem, Pass
from cutaway.engine.passes.reference_inputs import Evidence, MissingObservation, Reference

T = TypeVar("T")

Fold: TypeAlias = Generator[None, "Pass | None", T]
"""A computation that gets one pass after the other where it yields, and None behind the last; it returns its result,
which may need no more than the first passes. It raises `MissingObservation` where they do not show it."""

ReferenceFold: TypeAlias = Callable[[AttributionProblem, int], Fold[Reference]]
"""Begins to compute the reference of a problem, for the call of the layer with this number in each pass."""


class Folding(Generic[T]):
    """A fold that has begun."""

    def __init__(self, fold: Fold[T]) -> None:
        self._fold = fold
        self._results: list[T] = []
        self._missing: MissingObservation | None = None
        self._send(None)  # as far as the first yield

    def add(self, recorded: Pass) -> None:
        """Takes the next pass."""
        self._send(recorded)

    def result(self) -> T:
        """Returns the result of the passes so far, which are all; raises `MissingObservation`."""
        self._send(None)
        if self._missing is not None:
            raise self._missing
        return self._results[0]

    def _send(self, recorded: Pass | None) -> None:
        """Sends a pass to the fold; None begins or ends the fold. Keeps what the fold returns, or its
        `MissingObservation`."""
        if self._results or self._missing is not None:
            return
        try:
            self._fold.send(recorded)
        except StopIteration as stop:
            self._results.append(stop.value)
        except MissingObservation as missing:
            self._missing = missing


def whole(reference: Callable[[Evidence], Reference]) -> ReferenceFold:
    """Returns ``reference`` as a fold that keeps all passes, for methods that have few."""

    def fold(problem: AttributionProblem, call: int) -> Fold[Reference]:
        passes: list[Pass] = []
        while (recorded := (yield)) is not None:
            passes.append(recorded)
        return reference(Evidence(problem, passes, call))

    return fold
