"""Readers of recorded passes for references: modules that run, values by row, and folds, which take pass after pass."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from cutaway.contract.requests import NeuronAttribution, Point
from cutaway.contract.results import Cause
from cutaway.engine.hooks.capture_spec import SpecsBySite, watching
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.operators import is_address
from cutaway.engine.hooks.recording import RecordedCall
from cutaway.engine.passes.findings import Finding
from cutaway.engine.passes.pass_recorder import (
    AttributionProblem,
    Pass,
    ResolvedAttribution,
    Values,
    cached_per_problem,
)
from cutaway.engine.passes.reference_inputs import Evidence, MissingObservation, Reference, host


def operator_of(address: str) -> str:
    """Returns the operator's name in an address, such as ``relu`` in ``block2:relu#0``; ``""`` for a module's name."""
    return address.rpartition(":")[2].partition("#")[0] if is_address(address) else ""


def observe_forward(attribution: ResolvedAttribution, sites: SpecsBySite) -> dict[str, Sequence[RecordedCall]]:
    """Runs one forward pass at the input and returns the calls at ``sites``: module names, operator globs.

    Operators inside of the modules of ``sites`` are left out. No graph is built, and random number generators are
    restored afterwards.
    """
    model = attribution.model
    with torch.no_grad(), model.kept_rng_state(), observing(model.tree, sites) as recording, recording.forward():
        model.run(attribution.inputs)
    return outermost(recording.calls, sites)


def outermost(calls: Mapping[str, Sequence[RecordedCall]], sites: SpecsBySite) -> dict[str, Sequence[RecordedCall]]:
    """Returns ``calls`` without those of operators inside of the modules of ``sites``."""
    return {name: seen for name, seen in calls.items() if name in sites or name.rpartition(":")[0] not in sites}


@cached_per_problem
def module_calls(problem: AttributionProblem) -> Sequence[RecordedCall]:
    """Returns the calls, with their outputs, of the layer or of the neuron's module, in one forward pass."""
    return observe_forward(problem, {problem.module: watching(Point.OUTPUT)})[problem.module]


def reused_neuron_module(problem: AttributionProblem) -> Finding | None:
    """Reports a neuron's module that is called several times: Captum keeps the output of its last call only."""
    if not isinstance(problem.request, NeuronAttribution) or (calls := len(module_calls(problem))) < 2:
        return None
    return Finding(
        Cause.MODULE_REUSED,
        f"the module {problem.module!r} was called {calls} times in one forward pass; the neuron belongs to its first "
        "call, but Captum explains the last: build the model with a module for each call",
    )


def target_values(evidence: Evidence) -> Float64[Tensor, "passes batch"]:
    """Returns the target's value for each row in each pass, [passes, batch]."""
    target, device = evidence.problem.target, evidence.problem.model.device
    with torch.no_grad():
        return torch.stack([host(target.scalars(recorded.output.to(device))) for recorded in evidence.passes])


def expand_rows(row_values: Float[Tensor, "batch"], like: Float[Tensor, "..."]) -> Float[Tensor, "batch ..."]:
    """Returns ``row_values`` [batch] as [batch, 1, ...] with as many axes as ``like``, so that the two broadcast."""
    return row_values.reshape(-1, *[1] * (like.ndim - 1))


def expand_features(problem: AttributionProblem, feature_values: Float64[Tensor, "batch features"]) -> Values:
    """Returns, for each explained input, a tensor of its shape in which each element has its feature's value.

    Args:
        problem: defines the feature to which each element belongs.
        feature_values: [batch, features], float64 on the host.
    """
    expanded = {}
    for name, numbers in problem.features.numbers.items():
        shape = problem.inputs[name].shape
        feature_of_element = numbers.cpu().expand(shape).reshape(problem.rows, -1)
        expanded[name] = feature_values.gather(1, feature_of_element).reshape(shape)
    return expanded


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
