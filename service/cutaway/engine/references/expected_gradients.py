"""Expected gradients (GradientShap): Captum's samples are drawn again from the seed, and averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
import torch

from cutaway.contract.requests import ExpectedGradient, Point
from cutaway.engine.passes.pass_recorder import AttributionProblem, Pass, Values, run_passes
from cutaway.engine.passes.reference_inputs import Evidence, MissingObservation, Reference, host
from cutaway.engine.references.observation import expand_rows
from cutaway.engine.runtime.rng import numpy_seed

# Samples.


class Samples(NamedTuple):
    """The samples that Captum draws, by explained input: [samples, batch, *features] each.

    Attributes:
        noisy_inputs: the input plus noise.
        baselines: rows of the distribution of baselines.
        interpolated: points between the two, at which gradients are taken.
    """

    noisy_inputs: Values
    baselines: Values
    interpolated: Values


def draw_samples(problem: AttributionProblem) -> Samples:
    """Draws from the seed in Captum's order, with all samples of a row side by side.

    First the rows of the baselines, input by input; then the noise, input by input; then how far each sample lies
    between the two.
    """
    request = cast(ExpectedGradient, problem.request)
    count = problem.rows * request.n_samples
    seed = problem.seed or 0
    numpy_generator = np.random.RandomState(numpy_seed(seed))
    generator = torch.Generator(problem.model.device).manual_seed(seed)
    baselines = {
        name: problem.baselines[name][torch.from_numpy(numpy_generator.choice(len(problem.baselines[name]), count))]
        for name in problem.explained
    }
    noisy = {}
    for name, tensor in zip(problem.explained, problem.arguments):
        shape = (count, *tensor.shape[1:])
        noise = torch.randn(shape, generator=generator, device=tensor.device, dtype=torch.float32)
        noisy[name] = tensor.repeat_interleave(request.n_samples, dim=0) + request.stdev * noise
    # Captum keeps the coefficients in the data type of the first input.
    alpha = torch.from_numpy(numpy_generator.uniform(0.0, 1.0, count)).to(problem.arguments[0])
    interpolated = {
        name: expand_rows(alpha, end) * end + expand_rows(1 - alpha, end) * baselines[name]
        for name, end in noisy.items()
    }
    return Samples(*(_samples_first(values, request.n_samples) for values in (noisy, baselines, interpolated)))


def _samples_first(values: Values, samples: int) -> Values:
    """Returns tensors of [batch * samples, ...] as [samples, batch, ...]."""
    return {name: tensor.unflatten(0, (-1, samples)).transpose(0, 1) for name, tensor in values.items()}


# Points and passes.


def sample_points(problem: AttributionProblem) -> list[Values]:
    """Returns, for each sample, the point between a baseline and a noisy input."""
    return _points(draw_samples(problem).interpolated)


def layer_sample_points(problem: AttributionProblem) -> list[Values]:
    """Returns what `sample_points` does, then the baseline of each sample, then its noisy input."""
    samples = draw_samples(problem)
    return [*_points(samples.interpolated), *_points(samples.baselines), *_points(samples.noisy_inputs)]


def _points(values: Values) -> list[Values]:
    return [dict(zip(values, tensors)) for tensors in zip(*values.values())]


def layer_passes(problem: AttributionProblem) -> Sequence[Pass]:
    """Runs a pass with gradients at each point between; then forward passes at the baselines and the noisy inputs."""
    points, together = layer_sample_points(problem), samples_per_pass(problem)
    third = len(points) // 3
    return [
        *run_passes(problem, points[:third], differentiate=True, to_inputs=False, points_per_pass=together),
        *run_passes(problem, points[third:], differentiate=False, points_per_pass=together),
    ]


def samples_per_pass(problem: AttributionProblem) -> int:
    """Returns how many samples run in one pass: all as in Captum, but one where each row needs its own row number."""
    return 1 if problem.is_row_specific else cast(ExpectedGradient, problem.request).n_samples


# References.


def expected_gradients(evidence: Evidence) -> Reference:
    """Returns the mean over samples of ``(noisy x - baseline) * df/dx at the point between``.

    Erion et al. 2019, arXiv:1906.10670.
    """
    samples = draw_samples(evidence.problem)
    values, terms = {}, {}
    for name, noisy in samples.noisy_inputs.items():
        gradients = evidence.gradients(name)
        if len(gradients) != noisy.shape[0] * noisy.shape[1]:
            raise MissingObservation(f"not every pass brought a gradient to the input {name!r}")
        contributions = gradients.reshape(noisy.shape) * (host(noisy) - host(samples.baselines[name]))
        values[name], terms[name] = contributions.mean(dim=0), contributions.abs().mean(dim=0)
    return Reference(values, terms)


def layer_expected_gradients(evidence: Evidence) -> Reference:
    """Returns the mean over samples of ``(a(noisy x) - a(baseline)) * df/da at the point between``.

    ``a`` is the layer's output. Erion et al. 2019, arXiv:1906.10670.
    """
    third = len(evidence.passes) // 3
    between, at_baselines, at_noisy = (
        Evidence(evidence.problem, evidence.passes[first : first + third], evidence.call)
        for first in (0, third, 2 * third)
    )
    starts, ends = at_baselines.steps(Point.OUTPUT), at_noisy.steps(Point.OUTPUT)
    values, terms = {}, {}
    for name, gradients in between.steps(Point.GRAD_OUTPUT).items():
        values[name] = (gradients * (ends[name] - starts[name])).mean(dim=0)
        # The rounding error of a difference is that of its operands.
        terms[name] = (gradients.abs() * (ends[name].abs() + starts[name].abs())).mean(dim=0)
    return Reference(values, terms)
