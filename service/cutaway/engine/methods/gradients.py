"""Methods that take the gradient at the input, or one layer, once."""

from __future__ import annotations

from captum import attr

from cutaway.engine.evidence import at_input
from cutaway.engine.method import Method
from cutaway.engine.references import gradients as references
from cutaway.requests import (
    Attribution,
    InputXGradient,
    LayerActivation,
    LayerGradCam,
    LayerGradientXActivation,
    Saliency,
)

ROWS: dict[type[Attribution], Method] = {
    Saliency: Method(
        attr.Saliency,
        references.saliency,
        at_input,
        "|df/dx| from the raw gradient at the input",
        options=lambda question: {"abs": question.request.absolute},  # type: ignore[attr-defined]
        by_row=True,
    ),
    InputXGradient: Method(
        attr.InputXGradient,
        references.input_x_gradient,
        at_input,
        "x * df/dx from the raw gradient at the input",
        by_row=True,
    ),
    LayerActivation: Method(
        attr.LayerActivation,
        references.layer_activation,
        at_input,
        "the raw output of the layer",
        differentiates=False,
        by_row=True,
    ),
    LayerGradientXActivation: Method(
        attr.LayerGradientXActivation,
        references.layer_gradient_x_activation,
        at_input,
        "raw output * raw gradient of the layer",
        by_row=True,
    ),
    LayerGradCam: Method(
        attr.LayerGradCam,
        references.layer_grad_cam,
        at_input,
        "the raw output's channels, weighted by the mean of their raw gradients",
        options=lambda question: {"relu_attributions": question.request.relu},  # type: ignore[attr-defined]
        by_row=True,
    ),
}
