"""Methods that take one gradient, at the input or at a layer, and methods that integrate it along a path."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from cutaway.contract import requests
from cutaway.contract.errors import Reason, error
from cutaway.engine.methods.spec import Method, refuse_row_numbers
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.passes.pass_recorder import AttributionProblem, Changes
from cutaway.engine.passes.reference_inputs import CompletenessSums, input_point
from cutaway.engine.references import modified_backprop as references
from cutaway.engine.references import paths
from cutaway.engine.references.observation import whole
from cutaway.engine.runtime.numerics import PATH

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


# Methods that integrate gradients along a path from the baseline to the input.

MAX_STEPS = 10_000

_MAX_DOUBLED, _MAX_DOUBLED_GAUSS_LEGENDRE = 4096, 1024
"""The steps up to which they are doubled for the sake of `max_delta`."""


def _path_arguments(problem: AttributionProblem) -> dict[str, Any]:
    request: Any = problem.request
    return {
        "baselines": tuple(problem.baselines[name] for name in problem.explained),
        "n_steps": request.n_steps,
        "method": request.quadrature.value,
        "internal_batch_size": paths.rows_per_pass(problem),
    }


def _conductance_arguments(problem: AttributionProblem) -> dict[str, Any]:
    refuse_row_numbers(
        problem,
        "runs several steps in one pass",
        "ask InternalInfluence or LayerIntegratedGradients, or class targets",
    )
    points = paths.conductance_points_per_pass(problem)
    return {**_path_arguments(problem), "internal_batch_size": points * problem.rows}


def refuse_steps(_: InspectedModel, request: requests.PathAttribution, inputs: Inputs, edits: Changes) -> None:
    """Raises `InvalidArgument` for a number of steps that the request's quadrature does not support."""
    # LayerConductance takes differences between steps, so it has one point more than steps.
    is_gauss_legendre = request.quadrature is requests.Quadrature.GAUSS_LEGENDRE
    fewest = 1 if is_gauss_legendre or isinstance(request, requests.LayerConductance) else 2
    if not fewest <= request.n_steps <= MAX_STEPS:
        raise error(
            Reason.INVALID_VALUE,
            f"{request.n_steps} steps; {request.quadrature.name} takes {fewest} to {MAX_STEPS}",
            "path.n_steps",
        )


def max_steps(request: requests.PathAttribution) -> int:
    """Returns the largest number of steps to which those of the request are doubled."""
    is_gauss_legendre = request.quadrature is requests.Quadrature.GAUSS_LEGENDRE
    return _MAX_DOUBLED_GAUSS_LEGENDRE if is_gauss_legendre else _MAX_DOUBLED


def finer_steps(request: requests.Attribution, sums: CompletenessSums) -> requests.PathAttribution | None:
    """Returns ``request`` with twice the steps if ``sums`` exceeds the request's ``max_delta``; None if it does not,
    or if there are no more steps."""
    if not isinstance(request, requests.PathAttribution) or request.max_delta is None:
        return None
    most = max_steps(request)
    if request.n_steps >= most or bool((sums.delta.abs() <= request.max_delta).all()):
        return None
    return replace(request, n_steps=min(2 * request.n_steps, most))


_path = partial(
    Method,
    attribute_arguments=_path_arguments,
    points=paths.path_points,
    points_per_pass=paths.steps_per_pass,
    tolerances=PATH,
    refuse=refuse_steps,
    batchable=True,
)

ROWS |= {
    requests.IntegratedGradients: _path(
        paths.integrated_gradients,
        "(x - baseline) * the weighted sum of the raw gradients on the path",
        init_arguments=lambda request: {"multiply_by_inputs": request.multiply_by_inputs},
        satisfies_completeness=lambda request: bool(request.multiply_by_inputs),
    ),
    requests.InternalInfluence: _path(
        paths.internal_influence, "the weighted sum of the layer's raw gradients on the path"
    ),
    requests.LayerConductance: _path(
        paths.layer_conductance,
        "the sum of the layer's raw gradients * the change of its raw output, step by step on the path",
        points=paths.conductance_points,
        attribute_arguments=_conductance_arguments,
        satisfies_completeness=lambda _: True,
        points_per_pass=paths.conductance_points_per_pass,
    ),
    requests.LayerIntegratedGradients: _path(
        paths.layer_integrated_gradients,
        "(raw output at x - raw output at the baseline) * the weighted sum of the layer's raw gradients, its output "
        "replaced on the way from one to the other",
        points=paths.layer_path_points,
        satisfies_completeness=lambda _: True,
        reference_passes=paths.layer_path_passes,
        replaces_layer=True,
    ),
}


_FINEST = 128


def steps_to_try(n_steps: int) -> list[int]:
    """Returns the numbers of steps for which `incomplete` computes the convergence delta, at most."""
    return [more for more in (2 * n_steps, 4 * n_steps, 8 * n_steps) if more <= max(2 * n_steps, _FINEST)]
