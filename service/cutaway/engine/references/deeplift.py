"""DeepLIFT: attributions from the multipliers that flow back to the input, or to a layer's output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float64
from torch import Tensor

from cutaway.engine.passes.pass_recorder import AttributionProblem, Pass, Values, cached_per_problem
from cutaway.engine.passes.reference_inputs import Evidence, MissingObservation, Reference, host, input_point
from cutaway.engine.passes.repeated_batch import concatenated, interleave_copies
from cutaway.engine.passes.targets import ResolvedTarget
from cutaway.engine.references.deeplift_multipliers import RescaledPasses, run_rescaled
from cutaway.engine.references.nonlinearities import nonlinearities
from cutaway.requests import Point


def deeplift_points(problem: AttributionProblem) -> list[Values]:
    """Returns the input, once for each baseline, then the baselines; Captum runs all of them as one batch."""
    return input_point(problem) * len(problem.baseline_points) + problem.baseline_points


def deeplift_passes(problem: AttributionProblem) -> Sequence[Pass]:
    """Runs a pass at the baselines, and one at the input through which multipliers flow back."""
    return rescaled_passes(problem)[:2]


@cached_per_problem
def rescaled_passes(problem: AttributionProblem) -> RescaledPasses:
    """Runs the same passes, and returns what each nonlinearity passed back."""
    return run_rescaled(as_captum_batch(problem), nonlinearities(problem))


def as_captum_batch(problem: AttributionProblem) -> AttributionProblem:
    """Returns ``problem`` with each row repeated for each baseline, and all of these rows twice.

    Captum's batch has the baselines in the second half. The quotients of the Rescale rule are ill-conditioned where
    little changes: only in a batch of the same size do the model's kernels round as in Captum's. The target is that of
    the first half.
    """
    samples, rows = len(problem.baseline_points), problem.rows
    inputs = {name: tensor.repeat_interleave(samples, dim=0) for name, tensor in problem.inputs.items()}
    baselines = {
        name: interleave_copies([start[name] for start in problem.baseline_points]) for name in problem.explained
    }
    target = problem.target.for_rows(torch.arange(rows, device=problem.model.device).repeat_interleave(samples))

    def first_half(output: Tensor) -> Tensor:
        return target.scalars(output[: samples * rows])

    return replace(
        problem,
        inputs=concatenated([inputs, inputs]),
        baselines=concatenated([baselines, baselines]),
        target=ResolvedTarget(target.source, first_half, is_neuron=target.is_neuron),
    )


def deeplift(evidence: Evidence) -> Reference:
    """Returns the mean over the baselines ``x0`` of ``(x - x0) * multiplier``.

    Shrikumar et al. 2017, arXiv:1704.02685; several baselines (DeepLiftShap): Lundberg and Lee 2017, arXiv:1705.07874.
    """
    batch = as_captum_batch(evidence.problem)
    ends = {name: host(batch.inputs[name]) for name in batch.explained}
    starts = {name: host(baseline) for name, baseline in batch.baselines.items()}
    multipliers = {name: Evidence(evidence.problem, evidence.passes[1:]).gradients(name) for name in ends}
    return _contributions(evidence.problem, ends, starts, multipliers)


def layer_deeplift(evidence: Evidence) -> Reference:
    """Returns the mean over the baselines of ``(a(x) - a(x0)) * multiplier``, where ``a`` is the layer's output.

    Sources: as for `deeplift`.

    Raises:
        MissingObservation: also if the layer returns other shapes for the baseline, or axis 0 is not the batch.
    """
    before, now = (Evidence(evidence.problem, [recorded], evidence.call) for recorded in evidence.passes)
    return _contributions(
        evidence.problem, now.layer(Point.OUTPUT), before.layer(Point.OUTPUT), now.layer(Point.GRAD_OUTPUT)
    )


def _contributions(problem: AttributionProblem, ends: Values, starts: Values, multipliers: Values) -> Reference:
    if any({ends[name].shape, starts[name].shape} != {multiplier.shape} for name, multiplier in multipliers.items()):
        raise MissingObservation(
            f"the layer {problem.layer!r} returns other tensors for the baseline than for the input"
        )
    values, terms = {}, {}
    for name, multiplier in multipliers.items():
        values[name] = _mean(problem, (ends[name] - starts[name]) * multiplier)
        terms[name] = _mean(problem, (ends[name].abs() + starts[name].abs()) * multiplier.abs())
    return Reference(values, terms)


def _mean(
    problem: AttributionProblem, batch: Float64[Tensor, "captum_rows *features"]
) -> Float64[Tensor, "rows *features"]:
    """Returns the mean over baselines in the first half of [2 * rows * baselines, *features]: [rows, *features].

    A layer may have several rows for each example.
    """
    half, samples = batch[: len(batch) // 2], len(problem.baseline_points)
    if 2 * len(half) != len(batch) or len(half) % samples:
        raise MissingObservation(f"axis 0 of what the layer {problem.layer!r} returns is not the batch")
    return half.reshape(-1, samples, *half.shape[1:]).mean(dim=1)
