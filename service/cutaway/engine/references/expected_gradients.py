"""Expected gradients (GradientShap): Captum's samples are drawn again from the seed, and averaged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast

import numpy as np
import torch

from cutaway.contract.requests import ExpectedGradient, LayerGradientShap, Point
from cutaway.engine.model.inspected_model import CONTINUATION
from cutaway.engine.passes.pass_recorder import AttributionProblem, Pass, Values, run_passes
from cutaway.engine.passes.reference_inputs import Evidence, MissingObservation, Reference, host
from cutaway.engine.references.observation import Fold, expand_rows
from cutaway.engine.references.paths import DrawnPath, layer_integrated_gradients, layer_path_passes
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


# Texts. Captum's class for language models draws anew for each token of a text, and has no points between two prompts:
# these are between what the layer returns for them.


def token_paths(problem: AttributionProblem) -> Iterator[AttributionProblem]:
    """Yields, for each token of the text that the target has, the path from the baseline with the points drawn for
    it."""
    request, samples = cast(LayerGradientShap, problem.request), problem.baselines["input_ids"]
    tokens = problem.inputs[CONTINUATION].shape[1]
    has_token = problem.target.scalars(torch.eye(tokens, device=problem.model.device)).tolist()
    generator = np.random.RandomState(numpy_seed(problem.seed or 0))
    for step in range(tokens):
        generator.choice(len(samples), request.n_samples)
        drawn = generator.uniform(0.0, 1.0, request.n_samples).tolist()
        if has_token[step]:
            yield replace(
                problem,
                request=DrawnPath(layer=request.layer, drawn=tuple(drawn), n_steps=len(drawn)),
                baselines={"input_ids": samples[:1]},
                target=replace(problem.target, function=partial(torch.select, dim=1, index=step)),
            )


def token_passes(problem: AttributionProblem) -> Iterator[Pass]:
    """Runs `layer_path_passes` for each of the `token_paths`."""
    for path in token_paths(problem):
        yield from layer_path_passes(path)


def token_expected_gradients(problem: AttributionProblem, call: int) -> Fold[Reference]:
    """Returns the sum over tokens of the mean over samples of ``(a(x) - a(x0)) * df/da`` between the two.

    ``a`` is the layer's output, and ``x0`` the baseline, which is the same in all samples.
    """
    values: Values = {}
    terms: Values = {}
    for path in token_paths(problem):
        found = yield from layer_integrated_gradients(path, call)
        for sums, of_token in ((values, found.values), (terms, found.terms)):
            sums |= {name: tensor + sums.get(name, 0) for name, tensor in of_token.items()}
    return Reference(values, terms)
