"""Both sides of completeness: the sum of the attributions, and the target's change from the baseline to the input."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from cutaway.contract.requests import Quadrature
from cutaway.contract.tensors import Array
from cutaway.engine.model.inspected_model import Outputs
from cutaway.engine.passes.pass_recorder import AttributionProblem, Values
from cutaway.engine.passes.repeated_batch import RowRange

# Quadrature rules: the points and weights of a path integral from 0 to 1.


class Rule(NamedTuple):
    """``integral of f from 0 to 1 = sum(weights * f(alphas))``; the weights sum to 1."""

    alphas: Float64[Array, "n"]
    weights: Float64[Array, "n"]


gauss_legendre = lru_cache(maxsize=64)(np.polynomial.legendre.leggauss)
"""Returns nodes and weights of so many points from -1 to 1; cached, since 64 points take a millisecond."""


def rule(quadrature: Quadrature, n: int) -> Rule:
    """Returns the rule with ``n`` points from its textbook definition, in float64.

    Equidistant points are rounded to float32, as Captum's are: others would not equal Captum's points in float64.
    """
    if quadrature is Quadrature.GAUSS_LEGENDRE:
        nodes, weights = gauss_legendre(n)
        return Rule((nodes + 1) / 2, weights / 2)
    if quadrature is Quadrature.RIEMANN_TRAPEZOID:
        ends = np.full(n, 1 / (n - 1))
        ends[[0, -1]] /= 2
        return Rule(_even(0.0, 1.0, n), ends)
    shift = {
        Quadrature.RIEMANN_LEFT: 0.0,
        Quadrature.RIEMANN_MIDDLE: 0.5,
        Quadrature.RIEMANN_RIGHT: 1.0,
    }[quadrature]
    return Rule(_even(shift / n, 1 - (1 - shift) / n, n), np.full(n, 1 / n))


def _even(first: float, last: float, n: int) -> Float64[Array, "{n}"]:
    alphas: Array = torch.linspace(first, last, n, dtype=torch.float32).double().numpy()
    return alphas


@dataclass(frozen=True)
class CompletenessSums:
    """Both sides of completeness, on the host.

    Attributes:
        at_input: the target at the input.
        at_baseline: the target at the baseline.
        total: the sum of each row's attributions.
        mass: the sum of their magnitudes.
    """

    at_input: Float64[Tensor, "batch"]
    at_baseline: Float64[Tensor, "batch"]
    total: Float64[Tensor, "batch"]
    mass: Float64[Tensor, "batch"]

    @property
    def change(self) -> Float64[Tensor, "batch"]:
        """What the attributions must sum to."""
        return self.at_input - self.at_baseline

    @property
    def delta(self) -> Float64[Tensor, "batch"]:
        """The convergence delta."""
        return self.total - self.change

    def of_rows(self, rows: RowRange) -> CompletenessSums:
        """Returns the sums of some rows."""
        return CompletenessSums(*map(rows.of, (self.at_input, self.at_baseline, self.total, self.mass)))

    def of_batch(self) -> CompletenessSums:
        """Returns the sums over all rows, ``[1]``: where rows depend on each other only these can be complete."""
        return CompletenessSums(*(side.sum(dim=0, keepdim=True) for side in astuple(self)))


def completeness_sums(problem: AttributionProblem, values: Values, outputs: Outputs) -> CompletenessSums:
    """Returns both sides for attributions ``values``.

    Args:
        problem: the attribution. A distribution's baseline is the mean over its samples; without a baseline the target
            there is 0.
        values: the attributions, by name.
        outputs: what the model returned for the input, by name.
    """
    at_baseline = torch.zeros(problem.rows, dtype=torch.float64)
    if problem.baselines:
        with torch.no_grad():
            sources = (problem.read({**problem.inputs, **point}) for point in problem.baseline_points)
            at_baseline = torch.stack([problem.target.scalars(each).cpu().double() for each in sources]).mean(dim=0)
    return sums_between(problem, values, target_at_inputs(problem, outputs), at_baseline)


def sums_between(
    problem: AttributionProblem, values: Values, at_input: Tensor, at_baseline: Tensor
) -> CompletenessSums:
    """Returns both sides for ``values``, where the target at the input and at the baseline is known."""
    if problem.features.numbers:  # each element of a feature has the value of the whole feature, which counts once
        shares = problem.features.shares()
        values = {name: values[name].cpu().double() * share for name, share in shares.items()}
    magnitudes = {name: value.abs() for name, value in values.items()}
    return CompletenessSums(at_input, at_baseline, row_sums(values, problem.rows), row_sums(magnitudes, problem.rows))


def target_at_inputs(problem: AttributionProblem, outputs: Outputs) -> Float64[Tensor, "batch"]:
    """Returns the target of each row ``[batch]``, float64 on the host: from ``outputs``, or for a neuron from a forward
    pass."""
    with torch.no_grad():
        source = problem.read(problem.inputs) if problem.target.is_neuron else outputs[problem.target.source]
        return problem.target.scalars(source).cpu().double()


def row_sums(values: Values, rows: int) -> Float64[Tensor, "{rows}"]:
    """Returns the sum of each row, ``[rows]``, on the host; NaN where axis 0 is not the batch."""
    if any(value.shape[:1] != (rows,) for value in values.values()):
        return torch.full((rows,), float("nan"), dtype=torch.float64)  # axis 0 of a layer need not be the batch
    sums = [value.detach().cpu().double().reshape(rows, -1).sum(dim=1) for value in values.values()]
    return torch.stack(sums).sum(dim=0)
