"""Methods that take one gradient, at the input or at a layer."""

from __future__ import annotations

from functools import partial

from torch import nn

from cutaway.contract import requests
from cutaway.contract.errors import Reason, error
from cutaway.engine.methods.spec import Method
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.passes.folding import whole
from cutaway.engine.passes.pass_recorder import Changes
from cutaway.engine.passes.reference_inputs import input_point
from cutaway.engine.references import modified_backprop as references

ROWS: dict[type[requests.Attribution], Method] = {
    requests.Saliency: Method(
        whole(references.saliency),
        "|df/dx| from the raw gradient at the input",
        attribute_arguments=lambda problem: {"abs": problem.request.absolute},  # type: ignore[attr-defined]
        batchable=True,
    ),
    requests.InputXGradient: Method(
        whole(references.input_x_gradient), "x * df/dx from the raw gradient at the input", batchable=True
    ),
    requests.LayerActivation: Method(
        whole(references.layer_activation), "the raw output of the layer", differentiates=False, batchable=True
    ),
    requests.LayerGradientXActivation: Method(
        whole(references.layer_gradient_x_activation), "raw output * raw gradient of the layer", batchable=True
    ),
    requests.LayerGradCam: Method(
        whole(references.layer_grad_cam),
        "the raw output's channels, weighted by the mean of their raw gradients",
        attribute_arguments=lambda problem: {"relu_attributions": problem.request.relu},  # type: ignore[attr-defined]
        batchable=True,
    ),
}


# Guided backpropagation, deconvolution and guided Grad-CAM, which replace the derivative of ReLU.


def _refuse_edited_rectifiers(
    model: InspectedModel, request: requests.Attribution, inputs: Inputs, edits: Changes
) -> None:
    for name, numbered in edits.items():
        edits_gradient = any(edit.point.is_gradient for _, edit in numbered)
        if edits_gradient and isinstance(model.tree.modules.get(name), nn.ReLU):
            raise error(
                Reason.EDIT_INAPPLICABLE,
                f"the gradient at the nn.ReLU {name!r} is edited, and the method overrides it: it can do one only",
            )


_row = partial(
    Method,
    vacuous=references.vacuous,
    limitation=references.limitation,
    applies_to_modules=True,
    refuse=_refuse_edited_rectifiers,
)

ROWS |= {
    requests.GuidedBackprop: _row(
        whole(references.input_gradient),
        "df/dx of a pass in which raw hooks let only what is positive of the gradient leave each ReLU",
        reference_passes=references.guided_passes,
    ),
    requests.Deconvolution: _row(
        whole(references.input_gradient),
        "df/dx of a pass in which raw hooks pass on what is positive of the gradient that reaches each ReLU",
        reference_passes=references.deconvolution_passes,
    ),
    requests.GuidedGradCam: _row(
        whole(references.guided_grad_cam),
        "guided df/dx * the layer's raw output's channels, weighted by the mean of their raw gradients, where positive",
        points=lambda problem: input_point(problem) * 2,  # Captum runs two methods, with one pass each
        reference_passes=references.guided_grad_cam_passes,
    ),
}
