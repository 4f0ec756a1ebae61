"""Methods that replace parts of the inputs and compare the target before and after: forward passes only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from cutaway.contract import requests
from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.results import Cause
from cutaway.contract.tensors import as_array
from cutaway.engine.methods import spec
from cutaway.engine.model.inspected_model import Inputs, InspectedModel, dtype_text
from cutaway.engine.model.session import is_out_of_memory
from cutaway.engine.passes.features import MAX_EVALUATIONS, has_superpixels
from cutaway.engine.passes.findings import Finding
from cutaway.engine.passes.pass_recorder import AttributionProblem, Changes
from cutaway.engine.references import perturbations as references
from cutaway.engine.references import surrogates
from cutaway.engine.references.observation import module_calls
from cutaway.engine.runtime.numerics import EXACT, FITTED


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
    """Returns what `feature_arguments` returns, and the number of samples."""
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


_row = partial(spec.Method, attribute_arguments=feature_arguments, forward_only=True)

ROWS: dict[type[requests.Attribution], spec.Method] = {
    requests.FeatureAblation: _row(
        references.ablation,
        "f(x) - f(x with the feature at its baseline) from raw outputs",
        points=references.ablation_points,
        batchable=True,
    ),
    requests.Occlusion: _row(
        references.ablation,
        "the mean of f(x) - f(x with a window at its baseline) over the windows around an element, from raw outputs",
        points=references.ablation_points,
        attribute_arguments=_window_arguments,
        batchable=True,
    ),
    requests.FeaturePermutation: _row(
        references.ablation,
        "f(x) - f(x with the feature's rows in another order) from raw outputs",
        points=references.permutation_points,
        uses_randomness=True,
        vacuous=single_row,
        limitation=references.exchanged_undefined,
    ),
    requests.ShapleyValues: _row(
        references.shapley_values,
        "the mean of f(with the feature) - f(without it) over all orders, from raw outputs",
        points=references.shapley_points,
        satisfies_completeness=lambda _: True,
        completeness_tolerances=EXACT,
    ),
    requests.ShapleyValueSampling: _row(
        references.shapley_values,
        "the mean of f(with the feature) - f(without it) over the orders drawn, from raw outputs",
        points=references.shapley_points,
        attribute_arguments=sampling_arguments,
        uses_randomness=True,
        satisfies_completeness=lambda _: True,
        completeness_tolerances=EXACT,
    ),
}


# Methods that replace units of a layer and compare the target before and after: forward passes only.


def _refuse_baseline(_: InspectedModel, request: Any, inputs: Inputs, edits: Changes) -> None:
    if not math.isfinite(request.baseline):
        raise error(Reason.INVALID_VALUE, f"{request.baseline}; a unit is replaced by a finite number", "baseline")


@contextmanager
def _replaceable_output(problem: AttributionProblem) -> Iterator[None]:
    """Enters a context that requires a layer whose output Captum can replace, and names the layer if it cannot."""
    is_tuple = False
    try:
        with spec.readable_output(problem, partial(_refuse_outputs, problem.layer)):
            outputs = module_calls(problem)[0].at(requests.Point.OUTPUT)
            is_tuple = "" not in outputs
            for output in outputs.values():
                _refuse_out_of_range(problem, output)
            yield
    except Exception as failure:
        is_other = isinstance(failure, CutawayError) and (
            failure.reason != Reason.MODEL_FAILED or spec.met_no_tensor(problem, failure)
        )
        if is_out_of_memory(failure) or not is_tuple or is_other:
            raise
        with at(spec.module_field(problem)):
            raise spec.inapplicable(
                f"Captum replaces the list that {problem.layer!r} returns by a bare tensor, on which the model fails; "
                "name a module that returns a tensor, alone or in a tuple"
            ) from failure


def _refuse_outputs(layer: str, outputs: Sequence[Sequence[Tensor]]) -> None:
    units = sum(output[0].numel() for output in outputs[0])
    if units > MAX_EVALUATIONS:
        raise error(
            Reason.INVALID_VALUE,
            f"the layer {layer!r} has {units} units, and a forward pass is run for each, at most {MAX_EVALUATIONS}: "
            "name a smaller layer, or ask LayerConductance, which takes few passes",
        )
    shapes = dict.fromkeys(" and ".join(str(list(tensor.shape)) for tensor in output) for output in outputs)
    if len(shapes) > 1:
        raise spec.inapplicable(
            f"the layer {layer!r} is called {len(outputs)} times and returns the shapes {', '.join(shapes)}, and "
            "Captum replaces all of them by one: name a layer that is called once"
        )


def _ablation_arguments(problem: AttributionProblem) -> dict[str, Any]:
    baseline = cast(requests.LayerFeatureAblation, problem.request).baseline
    if not baseline:
        return {}  # Captum's default
    return {"layer_baselines": (baseline,) * len(module_calls(problem)[-1].at(requests.Point.OUTPUT))}


def _refuse_out_of_range(problem: AttributionProblem, output: Tensor) -> None:
    baseline = getattr(problem.request, "baseline", 0.0)
    if not bool(torch.tensor(baseline, dtype=output.dtype).isfinite()):
        with at(requests.field_name(type(problem.request))):
            raise error(
                Reason.INVALID_VALUE,
                f"{baseline} is no number of {dtype_text(output)}, which the layer returns",
                "baseline",
            )


_layer_row = partial(
    spec.Method,
    reference=references.unit_ablation,
    points=references.unit_points,
    forward_only=True,
    reference_passes=references.unit_passes,
    limitation=references.limitation,
    model_context=_replaceable_output,
)

ROWS |= {
    requests.LayerFeatureAblation: _layer_row(
        formula="f(x) - f(x with the layer's unit at the baseline) from raw outputs",
        attribute_arguments=_ablation_arguments,
        refuse=_refuse_baseline,
    ),
    requests.LayerFeaturePermutation: _layer_row(
        formula="f(x) - f(x with the rows of the layer's unit in another order) from raw outputs",
        takes_target=False,
        uses_randomness=True,
        vacuous=single_row,
    ),
}


# KernelSHAP and LIME: a linear model is fitted to the target's values when features are replaced by the baseline.

MAX_FEATURES = 4096

MAX_ELEMENTS = 2**22
"""Samples times features: the size of the matrix that is fitted for each example."""


def _arguments(problem: AttributionProblem) -> dict[str, Any]:
    if problem.rows > 1:
        spec.refuse_row_numbers(
            problem, "runs each example in passes of its own", "send one example a request, or ask for a class"
        )
    return sampling_arguments(problem)


def _refuse_features(request: requests.Surrogate, count: int) -> None:
    fewest = 2 if isinstance(request, requests.KernelShap) else 1
    if count < fewest:
        raise error(
            Reason.INVALID_VALUE,
            f"{count} features; {fewest} or more are needed: FeatureAblation explains one",
            "masks",
        )
    if count > MAX_FEATURES or count * request.n_samples > MAX_ELEMENTS:
        raise error(
            Reason.INVALID_VALUE,
            f"{request.n_samples} samples of {count} features make too large a fit, of at most {MAX_FEATURES} features "
            f"and {MAX_ELEMENTS} numbers: group elements into fewer features by masks",
            "masks",
        )


def _is_complete(request: requests.KernelShap) -> bool:
    """Returns whether the coefficients of ``request`` must sum to the target's change.

    From two samples on, the fit is almost exact for all features and for none. A mask with rows of its own may leave a
    row without an element of some feature.
    """
    is_shared = not has_superpixels(request) and all(len(as_array(mask)) == 1 for mask in request.masks.values())
    return request.n_samples > 1 and is_shared


_surrogate_row = partial(
    spec.Method,
    reference=surrogates.surrogate,
    standard_errors=surrogates.standard_errors,
    points=surrogates.surrogate_points,
    attribute_arguments=_arguments,
    forward_only=True,
    uses_randomness=True,
    tolerances=FITTED,
    reference_passes=surrogates.surrogate_passes,
    refuse_features=_refuse_features,
    imports=("sklearn.linear_model", "sklearn.svm"),
)

ROWS |= {
    requests.KernelShap: _surrogate_row(
        formula="the coefficients of f fitted to the draws under the Shapley kernel, from raw outputs",
        vacuous=surrogates.underdetermined,
        satisfies_completeness=_is_complete,
    ),
    requests.Lime: _surrogate_row(
        formula="the coefficients of a Lasso of f fitted to the draws, weighted by nearness, from raw outputs",
        vacuous=surrogates.underdetermined_or_zero,
    ),
}
