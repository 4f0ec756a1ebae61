"""Methods that take one gradient, at the input or at a layer."""

from __future__ import annotations

from captum import attr

from cutaway import requests
from cutaway.engine.methods.spec import Method
from cutaway.engine.references import gradients as references

ROWS: dict[type[requests.Attribution], Method] = {
    requests.Saliency: Method(
        attr.Saliency,
        references.saliency,
        "|df/dx| from the raw gradient at the input",
        attribute_arguments=lambda problem: {"abs": problem.request.absolute},  # type: ignore[attr-defined]
        batchable=True,
    ),
    requests.InputXGradient: Method(
        attr.InputXGradient, references.input_x_gradient, "x * df/dx from the raw gradient at the input", batchable=True
    ),
    requests.LayerActivation: Method(
        attr.LayerActivation,
        references.layer_activation,
        "the raw output of the layer",
        differentiates=False,
        batchable=True,
    ),
    requests.LayerGradientXActivation: Method(
        attr.LayerGradientXActivation,
        references.layer_gradient_x_activation,
        "raw output * raw gradient of the layer",
        batchable=True,
    ),
    requests.LayerGradCam: Method(
        attr.LayerGradCam,
        references.layer_grad_cam,
        "the raw output's channels, weighted by the mean of their raw gradients",
        attribute_arguments=lambda problem: {"relu_attributions": problem.request.relu},  # type: ignore[attr-defined]
        batchable=True,
    ),
}
