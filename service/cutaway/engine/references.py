"""The attributions again, from raw hook outputs and from nothing else: one function a method.

No line here is shared with Captum. Each function reads what the hooks saw (`Evidence`), works in float64, and states
the identity that it uses. `points` functions say which points a method must visit, so that a check can hold the
passes that Captum ran against the passes it should have run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from cutaway.engine.hooks import Call
from cutaway.engine.quadrature import rule
from cutaway.engine.witness import Pass, Question, Values
from cutaway.requests import IntegratedGradients, LayerGradCam, Point, Saliency


class Silent(Exception):
    """The hooks did not see what the reference is made of."""


@dataclass(frozen=True)
class Evidence:
    """What a reference may use.

    Attributes:
        question: what was asked.
        passes: what the hooks saw, pass by pass.
        call: which call of the layer is looked at, for a layer that was called several times in a pass.
    """

    question: Question
    passes: Sequence[Pass]
    call: int = 0

    def gradients(self, name: str) -> Tensor:
        """[passes x batch, ...], the gradients at input ``name``, all passes one after the other."""
        seen = [each.gradients[name] for each in self.passes if name in each.gradients]
        if not seen:
            raise Silent(f"no gradient reached the input {name!r}")
        return torch.cat(seen).double()

    def layer(self, point: Point) -> Values:
        """What the layer showed at ``point``, named as attributions of layers are."""
        calls: Sequence[Call] = self.passes[-1].layer if self.passes else ()
        if len(calls) <= self.call or not calls[self.call].get(point):
            what = "no gradient reached" if point.is_gradient else "nothing came out of"
            raise Silent(f"{what} the layer {self.question.layer!r}")
        return {
            layer_value_name(self.question.layer, path): tensor.double()
            for path, tensor in calls[self.call][point].items()
        }


def layer_value_name(layer: str, path: str) -> str:
    """``conv2`` for a layer that returns a tensor, ``lstm[0]`` for one that returns several."""
    return layer + path


# Which points must be visited.


def at_input(question: Question) -> list[Values]:
    """The input itself."""
    return [{name: question.inputs[name] for name in question.explained}]


def on_path(question: Question) -> list[Values]:
    """``baseline + alpha * (input - baseline)``, for each alpha of the quadrature."""
    request = cast(IntegratedGradients, question.request)
    ends = [(name, question.inputs[name], question.baselines[name]) for name in question.explained]
    return [
        {name: start + float(alpha) * (end - start) for name, end, start in ends}
        for alpha in rule(request.quadrature, request.n_steps).alphas
    ]


# What the attribution must be.


def saliency(evidence: Evidence) -> Values:
    """``|df/dx|``, or ``df/dx``."""
    absolute = cast(Saliency, evidence.question.request).absolute
    gradients = {name: evidence.gradients(name) for name in evidence.question.explained}
    return {name: gradient.abs() if absolute else gradient for name, gradient in gradients.items()}


def input_x_gradient(evidence: Evidence) -> Values:
    """``x * df/dx``."""
    inputs = evidence.question.inputs
    return {name: _host(inputs[name]) * evidence.gradients(name) for name in evidence.question.explained}


def integrated_gradients(evidence: Evidence) -> Values:
    """``(x - x0) * sum over k of weight_k * df/dx at the k-th point of the path``."""
    question = evidence.question
    request = cast(IntegratedGradients, question.request)
    weights = torch.from_numpy(rule(request.quadrature, request.n_steps).weights)
    values = {}
    for name in question.explained:
        gradients = evidence.gradients(name)
        steps = gradients.reshape(request.n_steps, question.rows, *gradients.shape[1:])
        integral = torch.tensordot(weights, steps, dims=1)
        span = _host(question.inputs[name]) - _host(question.baselines[name])
        values[name] = integral * span if request.multiply_by_inputs else integral
    return values


def layer_activation(evidence: Evidence) -> Values:
    """``a``, the layer's output."""
    return evidence.layer(Point.OUTPUT)


def layer_gradient_x_activation(evidence: Evidence) -> Values:
    """``a * df/da``."""
    gradients = evidence.layer(Point.GRAD_OUTPUT)
    return {name: value * gradients[name] for name, value in evidence.layer(Point.OUTPUT).items()}


def layer_grad_cam(evidence: Evidence) -> Values:
    """``sum over channels c of a_c * mean over positions of df/da_c``, [batch, 1, positions...]."""
    gradients = evidence.layer(Point.GRAD_OUTPUT)
    relu = cast(LayerGradCam, evidence.question.request).relu
    maps = {}
    for name, value in evidence.layer(Point.OUTPUT).items():
        weights = gradients[name]
        if weights.ndim > 2:
            weights = weights.flatten(2).mean(dim=2).reshape(*weights.shape[:2], *[1] * (weights.ndim - 2))
        maps[name] = (weights * value).sum(dim=1, keepdim=True)
    return {name: value.clamp(min=0) if relu else value for name, value in maps.items()}


def _host(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()
