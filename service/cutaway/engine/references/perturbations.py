"""Feature ablation, occlusion, feature permutation and Shapley values: references from forward passes only.

A region is the set of elements that are replaced together: a feature, or one position of an occlusion window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations, repeat
from math import factorial
from typing import TypeAlias, cast

import torch
from jaxtyping import Int64
from torch import Tensor

from cutaway.contract.requests import LayerFeaturePermutation, Point, ShapleyValues, ShapleyValueSampling
from cutaway.contract.results import Cause
from cutaway.engine.hooks.edits import Override
from cutaway.engine.hooks.recording import RecordedCall
from cutaway.engine.passes.features import Region, feature_region, regions
from cutaway.engine.passes.findings import Finding
from cutaway.engine.passes.pass_recorder import AttributionProblem, Pass, Values, run_passes
from cutaway.engine.passes.reference_inputs import (
    ComputedPoints,
    Evidence,
    MissingObservation,
    Points,
    Reference,
    host,
    input_point,
)
from cutaway.engine.references.observation import Fold, expand_features, expand_rows, module_calls, target_values
from cutaway.engine.runtime.numerics import Path, equal

# Points.


def ablation_points(problem: AttributionProblem) -> Points:
    """Returns the input; then, for each region, the input with the baseline in that region."""

    def computed() -> Iterator[Values]:
        yield from input_point(problem)
        for region in regions(problem.features, problem.inputs):
            yield _replaced(problem.inputs, region, problem.baselines)

    return ComputedPoints(1 + problem.features.count, computed)


def permutation_points(problem: AttributionProblem) -> Points:
    """Returns the input; then, for each feature, the input with the feature's rows permuted.

    A batch of one row has no other order, so for it only the input is returned.
    """

    def computed() -> Iterator[Values]:
        yield from input_point(problem)
        for region, orders in _orders(problem):
            permuted = {name: problem.inputs[name][order] for name, order in orders.items()}
            yield _replaced(problem.inputs, region, permuted)

    if problem.rows < 2:
        return input_point(problem)
    return ComputedPoints(1 + problem.features.count, computed)


def _orders(problem: AttributionProblem) -> Iterator[tuple[Region, dict[str, Tensor]]]:
    """Yields each feature, and the order of the rows of each input that it is in."""
    generator = torch.Generator().manual_seed(problem.seed or 0)
    for region in regions(problem.features, problem.inputs):
        inside = [name for name, elements in region.items() if bool(elements.any())]
        yield region, {name: row_permutation(problem.rows, generator) for name in inside}


def row_permutation(rows: int, generator: torch.Generator) -> Int64[Tensor, "{rows}"]:
    """Returns a random permutation of the row numbers that is not the identity."""
    while True:
        order = torch.randperm(rows, generator=generator)
        if not torch.equal(order, torch.arange(rows)):
            return order


def shapley_points(problem: AttributionProblem) -> Points:
    """Returns the baseline; then, for each order of the features, points with one more feature of the input each."""

    def computed() -> Iterator[Values]:
        baseline = dict(problem.baselines)
        yield baseline
        for order in _feature_orders(problem):
            point = baseline
            for feature in order:
                point = _replaced(point, feature_region(problem.features, feature), problem.inputs)
                yield point

    return ComputedPoints(1 + _order_count(problem) * problem.features.count, computed)


def _order_count(problem: AttributionProblem) -> int:
    request = problem.request
    return request.n_samples if isinstance(request, ShapleyValueSampling) else factorial(problem.features.count)


def _feature_orders(problem: AttributionProblem) -> Iterator[tuple[int, ...]]:
    """Yields the orders in which features are added: all of them, or a sample drawn from the seed."""
    count = problem.features.count
    if isinstance(problem.request, ShapleyValues):
        yield from permutations(range(count))
        return
    generator = torch.Generator().manual_seed(problem.seed or 0)
    for _ in range(cast(ShapleyValueSampling, problem.request).n_samples):
        yield tuple(torch.randperm(count, generator=generator).tolist())


def _replaced(point: Values, region: Region, values: Mapping[str, Tensor]) -> Values:
    """Returns ``point`` with ``values`` inside ``region``."""
    return {
        name: torch.where(inside, values[name], point[name]) if name in values else point[name]
        for name, inside in region.items()
    }


# References.


def _targets(problem: AttributionProblem) -> Fold[list[Tensor]]:
    """Returns the target's values in each pass, ``[batch]`` each."""
    targets: list[Tensor] = []
    while (recorded := (yield)) is not None:
        targets += target_values(Evidence(problem, [recorded]))
    return targets


def ablation(problem: AttributionProblem, call: int) -> Fold[Reference]:
    """Returns ``f(x) - f(x with the region replaced)``; at each element the mean over the regions that contain it.

    Feature ablation; occlusion: Zeiler and Fergus 2013, arXiv:1311.2901; permutation: Fisher et al. 2018,
    arXiv:1801.01489.
    """
    original, *perturbed = yield from _targets(problem)
    totals, terms, counts = (
        {name: torch.zeros(problem.inputs[name].shape, dtype=torch.float64) for name in problem.explained}
        for _ in range(3)
    )
    for region, target in zip(regions(problem.features, problem.inputs), perturbed):
        for name, inside in region.items():
            mask = host(inside)
            totals[name] += mask * expand_rows(original - target, mask)
            terms[name] += mask * expand_rows(original.abs() + target.abs(), mask)
            counts[name] += mask
    values, sizes = (
        {name: total / counts[name].clamp(min=1) for name, total in sums.items()} for sums in (totals, terms)
    )
    return Reference(values, sizes)


def shapley_values(problem: AttributionProblem, call: int) -> Fold[Reference]:
    """Returns the mean of ``f(with the feature) - f(without it)`` over the orders in which features were added.

    Shapley 1953, doi:10.1515/9781400881970-018; sampled orders: Castro et al. 2009, doi:10.1016/j.cor.2008.04.004.
    """
    baseline, *targets = yield from _targets(problem)
    sums, magnitudes = (torch.zeros(problem.rows, problem.features.count, dtype=torch.float64) for _ in range(2))
    following = iter(targets)
    for order in _feature_orders(problem):
        before = baseline
        for feature in order:
            after = next(following)
            sums[:, feature] += after - before
            magnitudes[:, feature] += after.abs() + before.abs()
            before = after
    count = _order_count(problem)
    return Reference(expand_features(problem, sums / count), expand_features(problem, magnitudes / count))


# Ablation and permutation of a layer's units. A unit is one element of the layer's output behind the batch axis.

UnitChange: TypeAlias = Callable[[Tensor], Tensor]
"""Returns the values that replace a tensor's."""


def unit_points(problem: AttributionProblem) -> list[Values]:
    """Returns the input for each of Captum's passes: one that reads the layer, one that restores what was read, one for
    each unit. A batch of one row has no other order."""
    permutes = isinstance(problem.request, LayerFeaturePermutation)
    units = 0 if permutes and problem.rows < 2 else len(list(_units(module_calls(problem)[-1])))
    return input_point(problem) * (2 + units)


def unit_passes(problem: AttributionProblem) -> Iterator[Pass]:
    """Runs a pass at the input; then, for each unit, one in which its values are replaced, unless nothing can be."""
    baseline = getattr(problem.request, "baseline", 0.0)
    changes: Iterator[UnitChange] = repeat(lambda unit: torch.full_like(unit, baseline))
    if isinstance(problem.request, LayerFeaturePermutation):
        changes = _permutations(problem) if problem.rows > 1 else iter(())
    first = _edited_pass(problem, lambda output: output)
    yield first
    without_layer = replace(problem, layer="")  # its output is recorded once, and not again for each unit
    for (path, unit), change in zip(_units(first.layer[0]), changes):
        yield _edited_pass(without_layer, _change_of_unit(unit, change), problem.layer, path)


def _permutations(problem: AttributionProblem) -> Iterator[UnitChange]:
    generator = torch.Generator().manual_seed(problem.seed or 0)
    while True:
        order = row_permutation(problem.rows, generator)
        yield lambda unit, order=order: unit[order.to(unit.device)]  # type: ignore[misc]


def _change_of_unit(unit: int, change: UnitChange) -> UnitChange:
    """Returns the change of a layer's output that applies ``change`` to one of its units."""

    def change_unit(output: Tensor) -> Tensor:
        units = output.flatten(1) if output.ndim > 1 else output.unsqueeze(1)
        new = units.clone()
        new[:, unit] = change(units[:, unit])
        return new.reshape(output.shape)

    return change_unit


def _edited_pass(problem: AttributionProblem, change: UnitChange, layer: str = "", path: Path = "") -> Pass:
    edits = {layer or problem.layer: [(0, Override(at=Point.OUTPUT, call=0, path=path, change=change))]}
    (recorded,) = run_passes(problem, input_point(problem), differentiate=False, edits=edits)
    return recorded


def _units(call: RecordedCall) -> Iterator[tuple[Path, int]]:
    """Yields each unit: the path of its tensor, and its number in a row of that."""
    for path, tensor in call.at(Point.OUTPUT).items():
        yield from ((path, unit) for unit in range(tensor[0].numel()))


# Reference.


def unit_ablation(problem: AttributionProblem, call: int) -> Fold[Reference]:
    """Returns ``f(x) - f(x with the unit replaced)`` in the shape of the layer's output; 0 if nothing replaces a unit.

    Captum, LayerFeatureAblation: https://captum.ai/api/layer.html; permutation: Fisher et al. 2018, arXiv:1801.01489.
    """
    if (at_input := (yield)) is None:
        raise MissingObservation("no pass was run")
    found = Evidence(problem, [at_input])
    units = yield from _targets(problem)
    original, values, terms = target_values(found).T, {}, {}  # [batch, 1]
    replaced_by_unit, first = torch.stack(units, dim=1) if units else original, 0
    for name, output in found.layer(Point.OUTPUT).items():
        count = output[0].numel()
        replaced = replaced_by_unit[:, first : first + count] if units else original
        values[name] = (original - replaced).expand(-1, count).reshape(output.shape)
        terms[name] = (original.abs() + replaced.abs()).expand(-1, count).reshape(output.shape)
        first += count
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
    if _is_overwritten(problem):
        return Finding(
            Cause.OTHER_PASSES,
            f"the model changes in place what {problem.layer!r} returns, and Captum continues with the changed values: "
            "explain the module that does so, or build it with inplace=False",
        )
    outputs = [output for call in calls for output in call.at(Point.OUTPUT).values()]
    if all(bool(output.isfinite().all()) for output in outputs):
        return None
    rows = _undefined_rows(outputs, problem.rows)
    if rows and isinstance(problem.request, LayerFeaturePermutation):
        generator = torch.Generator().manual_seed(problem.seed or 0)
        rows = _reached(rows, (row_permutation(problem.rows, generator) for _ in _units(calls[-1])))
    return Finding(
        Cause.NOT_FINITE,
        f"the layer {problem.layer!r} returns NaN or infinities, and Captum removes a unit by multiplying it by 0, "
        "which leaves NaN: explain a later layer that returns finite values",
        rows,
    )


def exchanged_undefined(problem: AttributionProblem) -> Finding | None:
    """Reports rows into which Captum puts NaN of others when it permutes a feature."""
    undefined = {name: _undefined_rows([problem.inputs[name]], problem.rows) for name in problem.explained}
    sources = {row for rows in undefined.values() for row in rows}
    if problem.rows < 2 or not sources:
        return None
    orders = [each for _, by_name in _orders(problem) for each in by_name.items()]
    reached = {
        row
        for name, rows in undefined.items()
        for row in _reached(rows, (order for of, order in orders if of == name))
        if row not in sources
    }
    if not reached:
        return None
    reason, own = (
        f"Captum exchanges a feature of two rows by multiplying all of both by 0 or 1, and {which} is not finite, "
        "which puts NaN into the other one: ask for such a row by itself"
        for which in (f"row {min(sources)}", "another row")
    )
    return Finding(Cause.NOT_FINITE, reason, tuple(sorted(reached)), (own,) * len(reached))


def _reached(rows: Sequence[int], orders: Iterable[Tensor]) -> tuple[int, ...]:
    """Returns ``rows``, and those that get a value of them in one of ``orders``."""
    reached = {*rows}
    for order in orders:
        reached |= {place for place, row in enumerate(order.tolist()) if row in rows}
    return tuple(sorted(reached))


def _undefined_rows(outputs: Sequence[Tensor], rows: int) -> tuple[int, ...]:
    """Returns the numbers of the rows that are not finite; none where axis 0 is not that of the rows."""
    if any(output.shape[:1] != (rows,) for output in outputs):
        return ()
    finite = torch.stack([output.isfinite().reshape(rows, -1).all(dim=1) for output in outputs]).all(dim=0)
    return tuple((~finite).nonzero().flatten().tolist())


def _is_overwritten(problem: AttributionProblem) -> bool:
    """Returns whether the model changes the layer's output in place, and changes a changed one further."""
    kept: list[Tensor] = []

    def keep(output: Tensor) -> Tensor:
        kept.append(output)
        return output

    first = _edited_pass(problem, keep)
    returned = first.layer[0].at(Point.OUTPUT).values()
    if all(equal(output, overwritten.cpu()) for output, overwritten in zip(returned, kept)):
        return False
    overwritten_values = iter(kept)
    return not equal(first.output, _edited_pass(problem, lambda _: next(overwritten_values).clone()).output)
