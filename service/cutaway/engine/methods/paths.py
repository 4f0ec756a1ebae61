"""Methods that integrate gradients along a path from the baseline to the input."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from cutaway.contract import requests
from cutaway.contract.errors import Reason, error
from cutaway.engine.methods.spec import Method, refuse_row_numbers
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.passes.pass_recorder import AttributionProblem, Changes
from cutaway.engine.passes.reference_inputs import CompletenessSums
from cutaway.engine.references import paths as references
from cutaway.engine.runtime.numerics import PATH

MAX_STEPS = 10_000

_MAX_DOUBLED, _MAX_DOUBLED_GAUSS_LEGENDRE = 4096, 1024
"""The steps up to which they are doubled for the sake of `max_delta`."""


def _path_arguments(problem: AttributionProblem) -> dict[str, Any]:
    request: Any = problem.request
    return {
        "baselines": tuple(problem.baselines[name] for name in problem.explained),
        "n_steps": request.n_steps,
        "method": request.quadrature.value,
        "internal_batch_size": references.rows_per_pass(problem),
    }


def _conductance_arguments(problem: AttributionProblem) -> dict[str, Any]:
    refuse_row_numbers(
        problem,
        "runs several steps in one pass",
        "ask InternalInfluence or LayerIntegratedGradients, or class targets",
    )
    points = references.conductance_points_per_pass(problem)
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


_row = partial(
    Method,
    attribute_arguments=_path_arguments,
    points=references.path_points,
    points_per_pass=references.steps_per_pass,
    tolerances=PATH,
    refuse=refuse_steps,
    batchable=True,
)

ROWS: dict[type[requests.Attribution], Method] = {
    requests.IntegratedGradients: _row(
        references.integrated_gradients,
        "(x - baseline) * the weighted sum of the raw gradients on the path",
        init_arguments=lambda request: {"multiply_by_inputs": request.multiply_by_inputs},
        satisfies_completeness=lambda request: bool(request.multiply_by_inputs),
    ),
    requests.InternalInfluence: _row(
        references.internal_influence, "the weighted sum of the layer's raw gradients on the path"
    ),
    requests.LayerConductance: _row(
        references.layer_conductance,
        "the sum of the layer's raw gradients * the change of its raw output, step by step on the path",
        points=references.conductance_points,
        attribute_arguments=_conductance_arguments,
        satisfies_completeness=lambda _: True,
        points_per_pass=references.conductance_points_per_pass,
    ),
    requests.LayerIntegratedGradients: _row(
        references.layer_integrated_gradients,
        "(raw output at x - raw output at the baseline) * the weighted sum of the layer's raw gradients, its output "
        "replaced on the way from one to the other",
        points=references.layer_path_points,
        satisfies_completeness=lambda _: True,
        reference_passes=references.layer_path_passes,
        replaces_layer=True,
    ),
}


_FINEST = 128


def steps_to_try(n_steps: int) -> list[int]:
    """Returns the numbers of steps for which `incomplete` computes the convergence delta, at most."""
    return [more for more in (2 * n_steps, 4 * n_steps, 8 * n_steps) if more <= max(2 * n_steps, _FINEST)]
