"""Gradients that begin at a neuron, or pass through it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from cutaway.engine.evidence import Evidence, Reference, Silent, at_input, host
from cutaway.engine.finding import Finding
from cutaway.engine.hooks import observing
from cutaway.engine.quadrature import rule
from cutaway.engine.references import backprop
from cutaway.engine.references.paths import on_path, steps_a_pass
from cutaway.engine.seen import Call
from cutaway.engine.subject import gradients
from cutaway.engine.targets import Chosen
from cutaway.engine.wishes import watching
from cutaway.engine.witness import Pass, Question, once, visits
from cutaway.requests import NeuronAttribution, PathAttribution, Point
from cutaway.results import Cause


@once
def calls(question: Question) -> Sequence[Call]:
    """What the question's module returns at the input, call by call; from a pass of its own."""
    with (
        torch.no_grad(),
        question.subject.dice(),
        observing(question.subject.tree, {question.module: watching(Point.OUTPUT)}) as seen,
        seen.forward(),
    ):
        question.subject.run(question.inputs)
    return seen.calls[question.module]


def reused(question: Question) -> Finding | None:
    """Captum keeps what the last call of the module returned; a neuron is of the first."""
    times = len(calls(question))
    if times < 2:
        return None
    return Finding(
        Cause.MODULE_REUSED,
        f"the module {question.module!r} was called {times} times in one forward; the neuron is of its first call, and "
        "Captum explains the last: build the model with a module for each call",
    )


# Passes.


def from_neuron(question: Question) -> Sequence[Pass]:
    """A pass at the input. Captum's own do not tell which neuron its backward pass began at."""
    return visits(question, at_input(question), differentiate=True)


def from_neuron_on_path(question: Question) -> Sequence[Pass]:
    """The same for each point of the path."""
    return visits(question, on_path(question), differentiate=True, together=steps_a_pass(question))


def through_neuron(question: Question) -> Sequence[Pass]:
    """For each point of the path two passes, one back from the target to the neuron and one from the neuron to the
    input; gradients are ``dtarget/dneuron * dneuron/dx``."""
    picked = _index(question)
    neuron = replace(question, chosen=Chosen(question.module, lambda output: output[picked], is_neuron=True))
    at_module = replace(question, layer=question.module)
    points, together = on_path(question), steps_a_pass(question)
    passes = []
    for behind, before in zip(
        visits(at_module, points, differentiate=True, together=together),
        visits(neuron, points, differentiate=True, together=together),
    ):
        before.gradients = {
            name: _by_row(_multiplier(behind, picked), gradient) * gradient.double()
            for name, gradient in before.gradients.items()
        }
        passes.append(before)
    return passes


def _index(question: Question) -> tuple[slice | int, ...]:
    return (slice(None), *cast(NeuronAttribution, question.request).neuron.index)


def _multiplier(behind: Pass, picked: tuple[slice | int, ...]) -> Tensor:
    """[batch], the target's gradient at the neuron."""
    seen = behind.layer[0].at(Point.GRAD_OUTPUT) if behind.layer else {}
    if not seen:
        raise Silent("no gradient reached the neuron's module")
    return next(iter(seen.values()))[picked].double()


def _by_row(multiplier: Tensor, like: Tensor) -> Tensor:
    return multiplier.reshape(-1, *[1] * (like.ndim - 1))


# References.


def integral(evidence: Evidence) -> Reference:
    """``(x - x0) * sum over k of weight_k * gradient at the k-th point of the path``."""
    question = evidence.question
    request = cast(PathAttribution, question.request)
    weights = torch.from_numpy(rule(request.quadrature, request.n_steps).weights)
    values, terms = {}, {}
    for name in question.explained:
        steps = evidence.gradients(name)
        steps = steps.reshape(request.n_steps, question.rows, *steps.shape[1:])
        span = host(question.inputs[name]) - host(question.baselines[name])
        values[name] = span * torch.tensordot(weights, steps, dims=1)
        terms[name] = span.abs() * torch.tensordot(weights, steps.abs(), dims=1)
    return Reference(values, terms)


# Rectifiers between the input and the neuron; what lies behind it has no part in its gradient.


def overlooked(question: Question) -> Finding | None:
    """What Captum overlooks on the way back from the neuron: functions, or that its module is called again."""
    return reused(question) or _functions(question)


def _functions(question: Question) -> Finding | None:
    found = _before(question)
    if not found.functions:
        return None
    return Finding(
        Cause.FUNCTIONAL_NONLINEARITY,
        f"functional relu at {', '.join(list(found.functions)[:3])} lies between the input and the neuron; Captum "
        "overrides nn.ReLU modules only, and differentiates it as it is: build the model with nn.ReLU modules, one for "
        "each place",
    )


def moot(question: Question) -> Finding | None:
    """Why the answer is no more than the gradient."""
    found = _before(question)
    if found.modules or found.functions:
        return None
    return Finding(
        Cause.NOT_MOVED, "no ReLU lies between the input and the neuron: with nothing to override, this is the gradient"
    )


def _before(question: Question) -> backprop.Rectifiers:
    """The rectifiers that the neuron's gradient passes through on its way back."""
    ran = backprop.rectifiers(question)
    taps = {name: watching(Point.GRAD_OUTPUT) for name in (*ran.modules, *ran.functions)}
    given = {
        name: tensor.detach().clone().requires_grad_() if name in question.explained else tensor
        for name, tensor in question.inputs.items()
    }
    with observing(question.subject.tree, taps) as seen:
        with seen.forward():
            output = question.read(given)
        leaves = [get_gradient_edge(given[name]) for name in question.explained]
        gradients(question.chosen.of(output), [*leaves, *seen.gradient_roots])
        return backprop.Rectifiers(_reached(ran.modules, seen.calls), _reached(ran.functions, seen.calls))


def _reached(ran: Mapping[str, int], seen: Mapping[str, Sequence[Call]]) -> Mapping[str, int]:
    return {name: times for name, times in ran.items() if any(call.at(Point.GRAD_OUTPUT) for call in seen[name])}
