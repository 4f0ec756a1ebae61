"""One gradient, at the input or at a layer."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from cutaway.engine.evidence import Evidence, Reference, exact, host
from cutaway.requests import Point, Saliency


def saliency(evidence: Evidence) -> Reference:
    """``|df/dx|``, or ``df/dx``."""
    absolute = cast(Saliency, evidence.question.request).absolute
    gradients = {name: evidence.gradients(name) for name in evidence.question.explained}
    return exact({name: gradient.abs() if absolute else gradient for name, gradient in gradients.items()})


def input_x_gradient(evidence: Evidence) -> Reference:
    """``x * df/dx``."""
    inputs = evidence.question.inputs
    return exact({name: host(inputs[name]) * evidence.gradients(name) for name in evidence.question.explained})


def layer_activation(evidence: Evidence) -> Reference:
    """``a``, the layer's output."""
    return exact(evidence.layer(Point.OUTPUT))


def layer_gradient_x_activation(evidence: Evidence) -> Reference:
    """``a * df/da``."""
    gradients = evidence.layer(Point.GRAD_OUTPUT)
    return exact({name: value * gradients[name] for name, value in evidence.layer(Point.OUTPUT).items()})


def layer_grad_cam(evidence: Evidence) -> Reference:
    """``sum over channels c of a_c * mean over positions of df/da_c``, [batch, 1, positions...]."""
    gradients = evidence.layer(Point.GRAD_OUTPUT)
    relu = getattr(evidence.question.request, "relu", False)
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
