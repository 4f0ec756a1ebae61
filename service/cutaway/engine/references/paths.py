"""Integrals of the gradient along a path."""

from __future__ import annotations

from typing import cast

import torch

from cutaway.engine.evidence import Evidence, Reference, host
from cutaway.engine.quadrature import rule
from cutaway.engine.witness import Question, Values
from cutaway.requests import IntegratedGradients


def on_path(question: Question) -> list[Values]:
    """``baseline + alpha * (input - baseline)``, for each alpha of the quadrature."""
    request = cast(IntegratedGradients, question.request)
    ends = [(name, question.inputs[name], question.baselines[name]) for name in question.explained]
    return [
        {name: start + float(alpha) * (end - start) for name, end, start in ends}
        for alpha in rule(request.quadrature, request.n_steps).alphas
    ]


def integrated_gradients(evidence: Evidence) -> Reference:
    """``(x - x0) * sum over k of weight_k * df/dx at the k-th point of the path``."""
    question = evidence.question
    request = cast(IntegratedGradients, question.request)
    weights = torch.from_numpy(rule(request.quadrature, request.n_steps).weights)
    values, terms = {}, {}
    for name in question.explained:
        gradients = evidence.gradients(name)
        steps = gradients.reshape(request.n_steps, question.rows, *gradients.shape[1:])
        span = host(question.inputs[name]) - host(question.baselines[name])
        factor = span if request.multiply_by_inputs else torch.ones_like(span)
        values[name] = torch.tensordot(weights, steps, dims=1) * factor
        terms[name] = torch.tensordot(weights, steps.abs(), dims=1) * factor.abs()
    return Reference(values, terms)
