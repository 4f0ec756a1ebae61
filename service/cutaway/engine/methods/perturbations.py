"""Methods that replace parts of the inputs and compare the target before and after: forward passes only."""

from __future__ import annotations

from functools import partial
from typing import Any

from captum import attr

from cutaway import requests
from cutaway.engine.methods.spec import Method
from cutaway.engine.passes.finding import Finding
from cutaway.engine.passes.pass_recorder import AttributionProblem
from cutaway.engine.references import perturbations as references
from cutaway.engine.runtime.numerics import EXACT
from cutaway.results import Cause


def feature_arguments(problem: AttributionProblem) -> dict[str, Any]:
    """Returns Captum's baselines and feature masks, with one perturbation per pass: each pass has the batch's rows."""
    numbers = problem.features.numbers
    arguments: dict[str, Any] = {"perturbations_per_eval": 1}
    if problem.baselines:
        arguments["baselines"] = tuple(problem.baselines[name] for name in problem.explained)
    if numbers:
        arguments["feature_mask"] = tuple(numbers[name] for name in problem.explained)
    return arguments


def sampling_arguments(problem: AttributionProblem) -> dict[str, Any]:
    """Returns the same, and the number of samples."""
    request: Any = problem.request
    return {**feature_arguments(problem), "n_samples": request.n_samples}


def _window_arguments(problem: AttributionProblem) -> dict[str, Any]:
    request: Any = problem.request
    windows = {name: tuple(request.windows[name]) for name in problem.explained}
    return {
        **feature_arguments(problem),
        "sliding_window_shapes": tuple(windows.values()),
        "strides": tuple(tuple(request.strides.get(name, (1,) * len(window))) for name, window in windows.items()),
    }


def single_row(problem: AttributionProblem) -> Finding | None:
    """Reports a batch of one row, in which rows cannot be permuted."""
    if problem.rows > 1:
        return None
    return Finding(
        Cause.NOT_MOVED,
        "a batch of one has no other row to exchange values with, so every attribution is 0: send several rows",
    )


_row = partial(Method, attribute_arguments=feature_arguments, forward_only=True)

ROWS: dict[type[requests.Attribution], Method] = {
    requests.FeatureAblation: _row(
        attr.FeatureAblation,
        references.ablation,
        "f(x) - f(x with the feature at its baseline) from raw outputs",
        points=references.ablation_points,
        batchable=True,
    ),
    requests.Occlusion: _row(
        attr.Occlusion,
        references.ablation,
        "the mean of f(x) - f(x with a window at its baseline) over the windows around an element, from raw outputs",
        points=references.ablation_points,
        attribute_arguments=_window_arguments,
        batchable=True,
    ),
    requests.FeaturePermutation: _row(
        attr.FeaturePermutation,
        references.ablation,
        "f(x) - f(x with the feature's rows in another order) from raw outputs",
        points=references.permutation_points,
        uses_randomness=True,
        vacuous=single_row,
    ),
    requests.ShapleyValues: _row(
        attr.ShapleyValues,
        references.shapley_values,
        "the mean of f(with the feature) - f(without it) over all orders, from raw outputs",
        points=references.shapley_points,
        satisfies_completeness=lambda _: True,
        completeness_tolerances=EXACT,
    ),
    requests.ShapleyValueSampling: _row(
        attr.ShapleyValueSampling,
        references.shapley_values,
        "the mean of f(with the feature) - f(without it) over the orders drawn, from raw outputs",
        points=references.shapley_points,
        attribute_arguments=sampling_arguments,
        uses_randomness=True,
        satisfies_completeness=lambda _: True,
        completeness_tolerances=EXACT,
    ),
}
