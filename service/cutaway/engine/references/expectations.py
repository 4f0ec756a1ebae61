"""Expected gradients: draws replayed from the seed, and the mean over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from cutaway.engine.draws import numpy_seed
from cutaway.engine.evidence import Evidence, Reference, Silent, host, layer_value_name
from cutaway.engine.witness import Pass, Question, Values, visits
from cutaway.requests import ExpectedGradient, Point

# Draws.


class Drawn(NamedTuple):
    """What was drawn, by explained input: [samples, batch, ...] each.

    Attributes:
        ends: noisy copies of the input.
        starts: baselines.
        between: points between the two, at which gradients are taken.
    """

    ends: Values
    starts: Values
    between: Values


def drawn(question: Question) -> Drawn:
    """The draws of the question's seed, in the order in which Captum makes them: which baselines, input by input; the
    noise, input by input; then how far each row goes from the one to the other. All samples of a row are drawn side by
    side."""
    request = cast(ExpectedGradient, question.request)
    count = question.rows * request.n_samples
    seed = question.seed or 0
    numbers = np.random.RandomState(numpy_seed(seed))
    normal = torch.Generator(question.subject.device).manual_seed(seed)
    starts = {
        name: question.baselines[name][torch.from_numpy(numbers.choice(len(question.baselines[name]), count))]
        for name in question.explained
    }
    ends = {
        name: input.repeat_interleave(request.n_samples, dim=0) + request.stdev * _noise(input, count, normal)
        for name, input in zip(question.explained, question.arguments)
    }
    # Captum keeps the coefficients in the data type of the first input.
    way = torch.from_numpy(numbers.uniform(0.0, 1.0, count)).to(question.arguments[0])
    between = {name: _by_row(way, end) * end + _by_row(1 - way, end) * starts[name] for name, end in ends.items()}
    return Drawn(*(_by_sample(each, request.n_samples) for each in (ends, starts, between)))


def _noise(like: Tensor, count: int, numbers: torch.Generator) -> Tensor:
    return torch.randn((count, *like.shape[1:]), generator=numbers, device=like.device, dtype=torch.float32)


def _by_row(factors: Tensor, like: Tensor) -> Tensor:
    return factors.reshape(-1, *[1] * (like.ndim - 1))


def _by_sample(values: Values, samples: int) -> Values:
    return {name: each.unflatten(0, (-1, samples)).transpose(0, 1) for name, each in values.items()}


# Passes.


def between(question: Question) -> list[Values]:
    """A point for each draw, between a baseline and a noisy copy of the input."""
    return _each(drawn(question).between)


def between_and_ends(question: Question) -> list[Values]:
    """The same, then the baseline of each draw, then the noisy copy of the input."""
    found = drawn(question)
    return [*_each(found.between), *_each(found.starts), *_each(found.ends)]


def _each(values: Values) -> list[Values]:
    return [dict(zip(values, each)) for each in zip(*values.values())]


def to_inputs(question: Question) -> Sequence[Pass]:
    """A pass at each point between."""
    return visits(question, between(question), differentiate=True, together=draws_a_pass(question))


def to_layer(question: Question) -> Sequence[Pass]:
    """A pass at each point between, and then those at both ends, forward only."""
    found = drawn(question)
    together = draws_a_pass(question)
    passes = visits(question, _each(found.between), differentiate=True, to_inputs=False, together=together)
    ends = [*_each(found.starts), *_each(found.ends)]
    return [*passes, *visits(question, ends, differentiate=False, together=together)]


def draws_a_pass(question: Question) -> int:
    """Captum runs all draws in one pass; where rows must keep their places, we let it run one at a time."""
    return 1 if question.keeps_rows else cast(ExpectedGradient, question.request).n_samples


# References.


def expected_gradients(evidence: Evidence) -> Reference:
    """``(noisy x - baseline) * df/dx between the two``, the mean over the draws."""
    found = drawn(evidence.question)
    values, terms = {}, {}
    for name, ends in found.ends.items():
        gradients = evidence.gradients(name)
        if len(gradients) != ends.shape[0] * ends.shape[1]:
            raise Silent(f"not every pass brought a gradient to the input {name!r}")
        flows = gradients.reshape(ends.shape) * (host(ends) - host(found.starts[name]))
        values[name], terms[name] = flows.mean(dim=0), flows.abs().mean(dim=0)
    return Reference(values, terms)


def expected_layer_gradients(evidence: Evidence) -> Reference:
    """``(a(noisy x) - a(baseline)) * df/da between the two``, for the layer's output ``a``; the mean over the draws."""
    third = len(evidence.passes) // 3
    at_between, at_starts, at_ends = (
        Evidence(evidence.question, evidence.passes[begin : begin + third], evidence.call)
        for begin in (0, third, 2 * third)
    )
    (gradients,) = at_between.steps(Point.GRAD_OUTPUT).values()
    (starts,), (ends,) = (each.steps(Point.OUTPUT).values() for each in (at_starts, at_ends))
    # One tensor in a tuple by itself is named like one without.
    name = layer_value_name(evidence.question.layer, "")
    # The rounding of a difference is that of its ends.
    terms = gradients.abs() * (ends.abs() + starts.abs())
    return Reference({name: (gradients * (ends - starts)).mean(dim=0)}, {name: terms.mean(dim=0)})
