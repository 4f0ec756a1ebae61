"""The attributions again, from raw hook outputs and from nothing else: one function a method.

No line here is shared with Captum. Each function reads what the hooks saw (`Evidence`), works in float64, and states
the identity that it uses. `points` functions say which points a method must visit, so that a check can hold the
passes that Captum ran against the passes it should have run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from cutaway.engine.quadrature import rule
from cutaway.engine.seen import Call
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
        if len(calls) <= self.call or not calls[self.call].at(point):
            what = "no gradient reached" if point.is_gradient else "nothing came out of"
            raise Silent(f"{what} the layer {self.question.layer!r}")
        return {
            layer_value_name(self.question.layer, path): tensor.double()
            for path, tensor in calls[self.call].at(point).items()
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


class Reference(NamedTuple):
    """What an attribution must be, and how well it can be known.

    Attributes:
        values: the attribution.
        terms: the same sums over the terms' magnitudes: where terms cancel, what is left is only as exact as they
            are large.
    """

    values: Values
    terms: Values


def saliency(evidence: Evidence) -> Reference:
    """``|df/dx|``, or ``df/dx``."""
    absolute = cast(Saliency, evidence.question.request).absolute
    gradients = {name: evidence.gradients(name) for name in evidence.question.explained}
    return _exact({name: gradient.abs() if absolute else gradient for name, gradient in gradients.items()})


def input_x_gradient(evidence: Evidence) -> Reference:
    """``x * df/dx``."""
    inputs = evidence.question.inputs
    return _exact({name: _host(inputs[name]) * evidence.gradients(name) for name in evidence.question.explained})


def integrated_gradients(evidence: Evidence) -> Reference:
    """``(x - x0) * sum over k of weight_k * df/dx at the k-th point of the path``."""
    question = evidence.question
    request = cast(IntegratedGradients, question.request)
    weights = torch.from_numpy(rule(request.quadrature, request.n_steps).weights)
    values, terms = {}, {}
    for name in question.explained:
        gradients = evidence.gradients(name)
        steps = gradients.reshape(request.n_steps, question.rows, *gradients.shape[1:])
        span = _host(question.inputs[name]) - _host(question.baselines[name])
        factor = span if request.multiply_by_inputs else torch.ones_like(span)
        values[name] = torch.tensordot(weights, steps, dims=1) * factor
        terms[name] = torch.tensordot(weights, steps.abs(), dims=1) * factor.abs()
    return Reference(values, terms)


def layer_activation(evidence: Evidence) -> Reference:
    """``a``, the layer's output."""
    return _exact(evidence.layer(Point.OUTPUT))


def layer_gradient_x_activation(evidence: Evidence) -> Reference:
    """``a * df/da``."""
    gradients = evidence.layer(Point.GRAD_OUTPUT)
    return _exact({name: value * gradients[name] for name, value in evidence.layer(Point.OUTPUT).items()})


def layer_grad_cam(evidence: Evidence) -> Reference:
    """``sum over channels c of a_c * mean over positions of df/da_c``, [batch, 1, positions...]."""
    gradients = evidence.layer(Point.GRAD_OUTPUT)
    relu = cast(LayerGradCam, evidence.question.request).relu
    values, terms = {}, {}
    for name, value in evidence.layer(Point.OUTPUT).items():
        cam = (_channel_means(gradients[name]) * value).sum(dim=1, keepdim=True)
        values[name] = cam.clamp(min=0) if relu else cam
        terms[name] = (_channel_means(gradients[name].abs()) * value.abs()).sum(dim=1, keepdim=True)
    return Reference(values, terms)


def _channel_means(gradient: Tensor) -> Tensor:
    """[batch, channels, 1...], the mean over positions; the gradient itself where there are none."""
    if gradient.ndim <= 2:
        return gradient
    return gradient.flatten(2).mean(dim=2).reshape(*gradient.shape[:2], *[1] * (gradient.ndim - 2))


def _exact(values: Values) -> Reference:
    return Reference(values, {name: value.abs() for name, value in values.items()})


def _host(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()
