"""Both sides of completeness: the sum of the attributions, and the target's change from the baseline to the input."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from cutaway.engine.model.inspected_model import Outputs
from cutaway.engine.passes.pass_recorder import AttributionProblem, Values


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
