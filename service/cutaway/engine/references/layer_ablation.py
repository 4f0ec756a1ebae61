"""Ablation and permutation of a layer's units: references from forward passes only.

A unit is one element of the layer's output behind the batch axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import TypeAlias, cast

import torch
from torch import Tensor

from cutaway.engine.hooks.edits import Override
from cutaway.engine.hooks.recording import RecordedCall
from cutaway.engine.passes.finding import Finding
from cutaway.engine.passes.pass_recorder import AttributionProblem, Pass, Values, run_passes
from cutaway.engine.passes.reference_inputs import Evidence, Reference, input_point
from cutaway.engine.references.observation import module_calls, target_values
from cutaway.engine.references.perturbations import row_permutation
from cutaway.engine.runtime.numerics import equal
from cutaway.engine.runtime.pytree import Path
from cutaway.requests import LayerFeatureAblation, Point
from cutaway.results import Cause

Change: TypeAlias = Callable[[Tensor], Tensor]
"""Returns the values that replace a tensor's."""


# Points: all of Captum's passes are at the input.


def ablation_points(problem: AttributionProblem) -> list[Values]:
    """Returns the input for each pass: one that reads the layer, one that restores what was read, one for each unit."""
    return input_point(problem) * (2 + len(list(_units(module_calls(problem)[-1]))))


def permutation_points(problem: AttributionProblem) -> list[Values]:
    """Returns the same; for a batch of one row, which has no other order, no passes for the units."""
    return ablation_points(problem) if problem.rows > 1 else input_point(problem) * 2


# Separate passes.


def ablation_passes(problem: AttributionProblem) -> Sequence[Pass]:
    """Runs a pass at the input; then, for each unit, one in which the unit has the baseline's value."""
    baseline = cast(LayerFeatureAblation, problem.request).baseline
    return _unit_passes(problem, repeat(lambda unit: torch.full_like(unit, baseline)))


def permutation_passes(problem: AttributionProblem) -> Sequence[Pass]:
    """Runs a pass at the input; then, unless the batch has one row, one for each unit with the unit's rows permuted."""
    return _unit_passes(problem, _permutations(problem) if problem.rows > 1 else iter(()))


def _permutations(problem: AttributionProblem) -> Iterator[Change]:
    generator = torch.Generator().manual_seed(problem.seed or 0)
    while True:
        order = row_permutation(problem.rows, generator)
        yield lambda unit, order=order: unit[order.to(unit.device)]  # type: ignore[misc]


def _unit_passes(problem: AttributionProblem, changes: Iterator[Change]) -> Sequence[Pass]:
    first = _edited_pass(problem, lambda output: output)
    passes = [first]
    without_layer = replace(problem, layer="")  # its output is recorded once, and not again for each unit
    for (path, unit), change in zip(_units(first.layer[0]), changes):
        recorded = _edited_pass(without_layer, _change_of_unit(unit, change), problem.layer, path)
        # The inputs are the same for all units, and kept once too.
        passes.append(replace(recorded, points=first.points, additional_inputs=first.additional_inputs))
    return passes


def _change_of_unit(unit: int, change: Change) -> Change:
    def changed(output: Tensor) -> Tensor:
        units = output.flatten(1) if output.ndim > 1 else output.unsqueeze(1)
        new = units.clone()
        new[:, unit] = change(units[:, unit])
        return new.reshape(output.shape)

    return changed


def _edited_pass(problem: AttributionProblem, change: Change, layer: str = "", path: Path = "") -> Pass:
    edits = {layer or problem.layer: [(0, Override(at=Point.OUTPUT, call=0, path=path, change=change))]}
    return run_passes(problem, input_point(problem), differentiate=False, edits=edits)[0]


def _outputs(call: RecordedCall) -> list[Tensor]:
    """Returns the tensors that the layer returned."""
    return list(call.at(Point.OUTPUT).values())


def _units(call: RecordedCall) -> Iterator[tuple[Path, int]]:
    """Yields each unit: the path of its tensor, and its number in a row of that."""
    for path, tensor in call.at(Point.OUTPUT).items():
        yield from ((path, unit) for unit in range(tensor[0].numel()))


# Reference.


def unit_ablation(evidence: Evidence) -> Reference:
    """Returns ``f(x) - f(x with the unit replaced)`` in the shape of the layer's output; 0 if nothing replaces a unit.

    Captum, LayerFeatureAblation: https://captum.ai/api/layer.html; permutation: Fisher et al. 2018, arXiv:1801.01489.
    """
    targets = target_values(evidence).T  # [batch, 1 + units]
    original, values, terms, first = targets[:, :1], {}, {}, 1
    for name, output in Evidence(evidence.problem, evidence.passes[:1]).layer(Point.OUTPUT).items():
        replaced = targets[:, first : first + output[0].numel()] if len(evidence.passes) > 1 else original
        values[name] = (original - replaced).expand(-1, output[0].numel()).reshape(output.shape)
        terms[name] = (original.abs() + replaced.abs()).expand(-1, output[0].numel()).reshape(output.shape)
        first += output[0].numel()
    return Reference(values, terms)


# Limitations of Captum.


def limitation(problem: AttributionProblem) -> Finding | None:
    """Reports a layer for which Captum's ablation is wrong.

    Captum replaces whatever the layer returns by one tensor, lets the model change it in place, and removes units by
    multiplying them by 0.
    """
    calls = module_calls(problem)
    if len(calls) > 1:
        return Finding(
            Cause.MODULE_REUSED,
            f"the layer {problem.layer!r} was called {len(calls)} times in one forward pass, and Captum replaces the "
            "output of each call by that of the last: build the model with a module for each call",
        )
    if not all(bool(output.isfinite().all()) for call in calls for output in _outputs(call)):
        return Finding(
            Cause.NOT_FINITE,
            f"the layer {problem.layer!r} returns NaN or infinities, and Captum removes a unit by multiplying it by 0, "
            "which leaves NaN: explain a later layer that returns finite values",
        )
    if _is_overwritten(problem):
        return Finding(
            Cause.OTHER_PASSES,
            f"the model changes in place what {problem.layer!r} returns, and Captum continues with the changed values: "
            "explain the module that does so, or build it with inplace=False",
        )
    return None


def _is_overwritten(problem: AttributionProblem) -> bool:
    """Whether the model changes the layer's output in place, and changes it further if it starts from the result."""
    kept: list[Tensor] = []

    def keep(output: Tensor) -> Tensor:
        kept.append(output)
        return output

    first = _edited_pass(problem, keep)
    if all(equal(output, changed.cpu()) for output, changed in zip(_outputs(first.layer[0]), kept)):
        return False
    changed_values = iter(kept)
    return not equal(first.output, _edited_pass(problem, lambda _: next(changed_values).clone()).output)
