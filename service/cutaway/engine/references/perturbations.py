"""Feature ablation, occlusion, feature permutation and Shapley values: references from forward passes only.

A region is the set of elements that are replaced together: a feature, or one position of an occlusion window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import cast

import torch
from jaxtyping import Int64
from torch import Tensor

from cutaway.engine.passes.features import Region, regions
from cutaway.engine.passes.pass_recorder import AttributionProblem, Values
from cutaway.engine.passes.reference_inputs import Evidence, Reference, host, input_point
from cutaway.engine.references.observation import expand_features, expand_rows, target_values
from cutaway.requests import ShapleyValues, ShapleyValueSampling

# Points.


def ablation_points(problem: AttributionProblem) -> list[Values]:
    """Returns the input; then, for each region, the input with the baseline in that region."""
    return input_point(problem) + [
        _replaced(problem.inputs, region, problem.baselines) for region in regions(problem.features, problem.inputs)
    ]


def permutation_points(problem: AttributionProblem) -> list[Values]:
    """Returns the input; then, for each feature, the input with the feature's rows permuted.

    A batch of one row has no other order, so for it only the input is returned.
    """
    points = input_point(problem)
    if problem.rows < 2:
        return points
    generator = torch.Generator().manual_seed(problem.seed or 0)
    for region in regions(problem.features, problem.inputs):
        permuted = {
            name: problem.inputs[name][row_permutation(problem.rows, generator)]
            for name, inside in region.items()
            if bool(inside.any())
        }
        points.append(_replaced(problem.inputs, region, permuted))
    return points


def row_permutation(rows: int, generator: torch.Generator) -> Int64[Tensor, "{rows}"]:
    """Returns a random permutation of the row numbers that is not the identity."""
    while True:
        order = torch.randperm(rows, generator=generator)
        if not torch.equal(order, torch.arange(rows)):
            return order


def shapley_points(problem: AttributionProblem) -> list[Values]:
    """Returns the baseline; then, for each order of the features, points with one more feature of the input each."""
    baseline = dict(problem.baselines)
    points = [baseline]
    feature_regions = list(regions(problem.features, problem.inputs))
    for order in _feature_orders(problem):
        point = baseline
        for feature in order:
            point = _replaced(point, feature_regions[feature], problem.inputs)
            points.append(point)
    return points


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


def ablation(evidence: Evidence) -> Reference:
    """Returns ``f(x) - f(x with the region replaced)``; at each element the mean over the regions that contain it.

    Feature ablation; occlusion: Zeiler and Fergus 2013, arXiv:1311.2901; permutation: Fisher et al. 2018,
    arXiv:1801.01489.
    """
    problem = evidence.problem
    original, *perturbed = target_values(evidence)
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
        {name: each / counts[name].clamp(min=1) for name, each in sums.items()} for sums in (totals, terms)
    )
    return Reference(values, sizes)


def shapley_values(evidence: Evidence) -> Reference:
    """Returns the mean of ``f(with the feature) - f(without it)`` over the orders in which features were added.

    Shapley 1953, doi:10.1515/9781400881970-018; sampled orders: Castro et al. 2009, doi:10.1016/j.cor.2008.04.004.
    """
    problem = evidence.problem
    baseline, *targets = target_values(evidence)
    sums, magnitudes = (torch.zeros(problem.rows, problem.features.count, dtype=torch.float64) for _ in range(2))
    following = iter(targets)
    orders = list(_feature_orders(problem))
    for order in orders:
        before = baseline
        for feature in order:
            after = next(following)
            sums[:, feature] += after - before
            magnitudes[:, feature] += after.abs() + before.abs()
            before = after
    return Reference(expand_features(problem, sums / len(orders)), expand_features(problem, magnitudes / len(orders)))
