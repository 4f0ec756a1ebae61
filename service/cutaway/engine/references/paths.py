"""Integrals of the gradient along a path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from cutaway.engine.arrays import to_numpy
from cutaway.engine.evidence import Evidence, Reference, Silent, host
from cutaway.engine.quadrature import rule
from cutaway.engine.seen import Call
from cutaway.engine.witness import Pass, Question, Values, visits
from cutaway.requests import IntegratedGradients, LayerIntegratedGradients, PathAttribution, Point, Replace

NUMBERS_A_PASS = 1 << 19
"""Captum walks a path in passes of about this many numbers, so that memory does not grow with the number of steps."""

FEWEST_ROWS, MOST_ROWS = 16, 512
"""The bounds of that in rows: fewer gain nothing but time, more gain none."""

_OF_AN_ID = 256
"""What a whole number counts for: behind it stands an embedding."""


def rows_a_pass(question: Question) -> int:
    """How many rows Captum runs in one pass: of one step alone, where rows must keep their places."""
    return question.rows if question.keeps_rows else max(affordable(question), question.rows)


def affordable(question: Question) -> int:
    """How many rows of such inputs make a pass of `NUMBERS_A_PASS`, within bounds."""
    numbers = sum(
        tensor.numel() * (1 if tensor.is_floating_point() else _OF_AN_ID) for tensor in question.inputs.values()
    )
    return min(MOST_ROWS, max(FEWEST_ROWS, NUMBERS_A_PASS * question.rows // max(1, numbers)))


def steps_a_pass(question: Question) -> int:
    """How many steps that is."""
    return rows_a_pass(question) // question.rows


def on_path(question: Question) -> list[Values]:
    """``baseline + alpha * (input - baseline)``, for each alpha of the quadrature."""
    request = cast(PathAttribution, question.request)
    return _points(question, [float(alpha) for alpha in rule(request.quadrature, request.n_steps).alphas])


def _points(question: Question, alphas: Sequence[float]) -> list[Values]:
    along = {
        name: _along(question.baselines[name], question.inputs[name], alphas).unbind() for name in question.explained
    }
    return [{name: steps[number] for name, steps in along.items()} for number in range(len(alphas))]


def _along(start: Tensor, end: Tensor, alphas: Sequence[float]) -> Tensor:
    """[steps, ...], the points on the way; each factor as precise as a Python number beside a tensor is."""
    precise = torch.promote_types(end.dtype, torch.float32)
    factors = torch.tensor(alphas, dtype=precise, device=end.device).reshape(-1, *[1] * end.ndim)
    return start + (factors * (end - start).to(precise)).to(end.dtype)


def integrated_gradients(evidence: Evidence) -> Reference:
    """``(x - x0) * sum over k of weight_k * df/dx at the k-th point of the path``."""
    question = evidence.question
    request = cast(IntegratedGradients, question.request)
    values, terms = {}, {}
    for name in question.explained:
        gradients = evidence.gradients(name)
        steps = gradients.reshape(request.n_steps, question.rows, *gradients.shape[1:])
        span = host(question.inputs[name]) - host(question.baselines[name])
        factor = span if request.multiply_by_inputs else torch.ones_like(span)
        values[name] = _integral(request, steps) * factor
        terms[name] = _integral(request, steps.abs()) * factor.abs()
    return Reference(values, terms)


def _integral(request: PathAttribution, steps: Tensor) -> Tensor:
    """[steps, ...] to [...]: the quadrature's weighted sum."""
    weights = torch.from_numpy(rule(request.quadrature, request.n_steps).weights)
    integral: Tensor = torch.tensordot(weights, steps, dims=1)
    return integral


def internal_influence(evidence: Evidence) -> Reference:
    """``sum over k of weight_k * df/da at the k-th point of the path``, for the layer's output ``a``."""
    request = cast(PathAttribution, evidence.question.request)
    steps = evidence.steps(Point.GRAD_OUTPUT)
    return Reference(
        {name: _integral(request, each) for name, each in steps.items()},
        {name: _integral(request, each.abs()) for name, each in steps.items()},
    )


def through_steps(question: Question, rows_a_pass: int) -> list[Values]:
    """One point more than there are steps. Captum runs them in several passes, each of which begins with the point
    that the one before ended with."""
    request = cast(PathAttribution, question.request)
    alphas = [float(alpha) for alpha in rule(request.quadrature, request.n_steps + 1).alphas]
    steps = max(1, rows_a_pass // question.rows - 1)
    passes = [alphas[start : start + steps + 1] for start in range(0, request.n_steps, steps)]
    return _points(question, [alpha for each in passes for alpha in each])


def layer_conductance(evidence: Evidence) -> Reference:
    """``sum over k of df/da at the k-th point of the path * (a at the next point - a at this one)``. A point that is
    visited twice in a row adds nothing."""
    gradients = evidence.steps(Point.GRAD_OUTPUT)
    values, terms = {}, {}
    for name, outputs in evidence.steps(Point.OUTPUT).items():
        flows = gradients[name][:-1] * outputs.diff(dim=0)
        values[name] = flows.sum(dim=0)
        # The rounding of a sum of differences is that of its ends.
        terms[name] = flows.abs().sum(dim=0) + (gradients[name] * outputs).abs().amax(dim=0)
    return Reference(values, terms)


def layer_steps(question: Question) -> list[Values]:
    """The input and the baseline, and the input again for each step, where the layer's output is replaced."""
    request = cast(PathAttribution, question.request)
    end = {name: question.inputs[name] for name in question.explained}
    start = {name: question.baselines[name] for name in question.explained}
    return [end, start, *[end] * request.n_steps]


def layer_path(question: Question) -> Sequence[Pass]:
    """A pass at the input, one at the baseline; then for each call of the layer the steps between what it returned
    in the two."""
    request = cast(PathAttribution, question.request)
    end, start, *_ = layer_steps(question)
    ends = visits(question, [end, start], differentiate=False)
    passes = list(ends)
    alphas = [float(alpha) for alpha in rule(request.quadrature, request.n_steps).alphas]
    together = _steps_together(question, ends)
    for number, (last, first) in enumerate(zip(ends[0].layer, ends[1].layer)):
        for begin in range(0, len(alphas), together):
            some = alphas[begin : begin + together]
            edits = {question.layer: list(enumerate(_replaced(number, first, last, *some)))}
            passes += visits(question, [end] * len(some), differentiate=True, edits=edits, together=len(some))
    return passes


def _steps_together(question: Question, ends: Sequence[Pass]) -> int:
    """How many steps of the layer's values make a batch: one, where their rows do not lie along axis 0."""
    shown = [tensor for each in ends for call in each.layer for tensor in call.at(Point.OUTPUT).values()]
    by_row = all(tensor.shape[:1] == (question.rows,) for tensor in shown)
    sequences = any(tensor.ndim == 3 and tensor.shape[1] == question.rows for tensor in shown)
    return steps_a_pass(question) if by_row and not sequences else 1


def _replaced(number: int, first: Call, last: Call, *alphas: float) -> Iterator[Replace]:
    starts, ends = first.at(Point.OUTPUT), last.at(Point.OUTPUT)
    for path, start in starts.items():
        if path not in ends or ends[path].shape != start.shape:
            raise Silent("the layer returns other tensors for the baseline than for the input")
        if start.is_floating_point():
            steps = [start + alpha * (ends[path] - start) for alpha in alphas]
            yield Replace(call=number, path=path, tensor=to_numpy(torch.cat(steps) if len(steps) > 1 else steps[0]))


def held_at_baseline(question: Question) -> Tensor:
    """[batch], the target at the input, where the layer returns what it returns at the baseline; float64 on the host.

    Raises:
        Silent: the layer returns other tensors there.
    """
    end, start, *_ = layer_steps(replace(question, request=LayerIntegratedGradients(layer=question.layer, n_steps=1)))
    first, last = (visits(question, [point], differentiate=False)[0] for point in (start, end))
    numbered = [
        edit for number, calls in enumerate(zip(first.layer, last.layer)) for edit in _replaced(number, *calls, 0.0)
    ]
    (held,) = visits(question, [end], False, edits={question.layer: list(enumerate(numbered))})
    with torch.no_grad():
        return host(question.chosen.of(held.output.to(question.subject.device)))


def layer_integrated_gradients(evidence: Evidence) -> Reference:
    """``(a(x) - a(x0)) * sum over k of weight_k * df/da``, where the layer's output is ``a(x0) + alpha_k * (a(x) -
    a(x0))``, and all else is as at ``x``."""
    request = cast(PathAttribution, evidence.question.request)
    last, first = (Evidence(evidence.question, evidence.passes[k : k + 1], evidence.call) for k in (0, 1))
    passes = (len(evidence.passes) - 2) // len(evidence.passes[0].layer)  # for each call as many
    begin = 2 + evidence.call * passes
    on_way = Evidence(evidence.question, evidence.passes[begin : begin + passes], evidence.call)
    starts, values, terms = first.layer(Point.OUTPUT), {}, {}
    gradients = on_way.steps(Point.GRAD_OUTPUT)
    for name, end in last.layer(Point.OUTPUT).items():
        span = end - starts[name]
        values[name] = span * _integral(request, gradients[name])
        terms[name] = (end.abs() + starts[name].abs()) * _integral(request, gradients[name].abs())
    return Reference(values, terms)
