"""References for methods that take one gradient, at the input or at a layer."""

from __future__ import annotations

from typing import cast

from jaxtyping import Float64
from torch import Tensor

from cutaway.engine.passes.reference_inputs import Evidence, Reference, exact, host
from cutaway.requests import Point, Saliency


def saliency(evidence: Evidence) -> Reference:
    """Returns ``|df/dx|``, or ``df/dx`` if the request asks for signs. Simonyan et al. 2013, arXiv:1312.6034."""
    absolute = cast(Saliency, evidence.problem.request).absolute
    gradients = {name: evidence.gradients(name) for name in evidence.problem.explained}
    return exact({name: gradient.abs() if absolute else gradient for name, gradient in gradients.items()})


def input_x_gradient(evidence: Evidence) -> Reference:
    """Returns ``x * df/dx``. Shrikumar et al. 2016, arXiv:1605.01713."""
    inputs = evidence.problem.inputs
    return exact({name: host(inputs[name]) * evidence.gradients(name) for name in evidence.problem.explained})


def layer_activation(evidence: Evidence) -> Reference:
    """Returns ``a``, the layer's output. Captum, LayerActivation: https://captum.ai/api/layer.html."""
    return exact(evidence.layer(Point.OUTPUT))


def layer_gradient_x_activation(evidence: Evidence) -> Reference:
    """Returns ``a * df/da``. Captum, LayerGradientXActivation: https://captum.ai/api/layer.html."""
    gradients = evidence.layer(Point.GRAD_OUTPUT)
    return exact({name: value * gradients[name] for name, value in evidence.layer(Point.OUTPUT).items()})


def layer_grad_cam(evidence: Evidence) -> Reference:
    """Returns ``sum over channels c of a_c * mean over positions of df/da_c``, [batch, 1, *positions].

    Negative values become 0 if the request says so. Selvaraju et al. 2017, arXiv:1610.02391.
    """
    gradients = evidence.layer(Point.GRAD_OUTPUT)
    relu = getattr(evidence.problem.request, "relu", False)
    values, terms = {}, {}
    for name, value in evidence.layer(Point.OUTPUT).items():
        cam = (_channel_means(gradients[name]) * value).sum(dim=1, keepdim=True)
        values[name] = cam.clamp(min=0) if relu else cam
        terms[name] = (_channel_means(gradients[name].abs()) * value.abs()).sum(dim=1, keepdim=True)
    return Reference(values, terms)


def _channel_means(gradient: Float64[Tensor, "batch channels *positions"]) -> Float64[Tensor, "batch channels *ones"]:
    """Returns the mean over positions, [batch, channels, 1, ...]; a gradient without positions as it is."""
    if gradient.ndim <= 2:
        return gradient
    return gradient.flatten(2).mean(dim=2).reshape(*gradient.shape[:2], *[1] * (gradient.ndim - 2))
