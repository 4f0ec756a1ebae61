"""The shapes of attributions, from one forward pass without Captum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from cutaway import requests
from cutaway.engine.checks.completeness import compared_sums
from cutaway.engine.execution.attribute import (
    attribution_errors,
    attribution_result,
    in_request_order,
    problems,
    refuse_uncalled_modules,
)
from cutaway.engine.execution.collect import arrays
from cutaway.engine.execution.explain_if import qualifying_rows
from cutaway.engine.execution.main_pass import MainPass
from cutaway.engine.hooks import shape_only
from cutaway.engine.hooks.capture_spec import CaptureSpec
from cutaway.engine.hooks.recording import Recording
from cutaway.engine.methods.table import method_of
from cutaway.engine.model.inspected_model import Outputs
from cutaway.engine.passes.convergence_delta import CompletenessSums
from cutaway.engine.passes.pass_recorder import AttributionProblem, Values, neuron_output
from cutaway.engine.passes.reference_inputs import layer_value_name
from cutaway.engine.passes.token_sums import token_attribution
from cutaway.engine.planning.name_resolution import CaptureSites
from cutaway.engine.planning.plan import Plan
from cutaway.engine.runtime.numpy_bridge import to_numpy
from cutaway.errors import CutawayError
from cutaway.requests import Point, field_name
from cutaway.results import AttributionResult, Check, MetricResult, Verdict
from cutaway.schema.tensors import Array

_IN_FLOAT32 = (requests.Occlusion, requests.ShapleyValues, requests.ShapleyValueSampling, requests.Surrogate)
"""Methods that Captum computes in float32, for every data type of the model."""


def attribution_sites(plan: Plan) -> CaptureSites:
    """Returns what must be recorded for attributions: the shapes of modules' outputs, and token ids of embeddings."""
    sites: CaptureSites = {}
    for attribution in plan.attributions:
        tree = attribution.model.tree
        targets = (attribution.request.target, plan.request.target)
        neurons = [tree.resolve(target.module) for target in targets if isinstance(target, requests.Neuron)]
        for name in (*attribution.modules, *neurons):
            is_embedding = isinstance(tree.modules[name], nn.Embedding)
            ids = {Point.INPUT: CaptureSpec()} if is_embedding else {}
            sites[name] = {Point.OUTPUT: shape_only.ValueShape(), **ids}
    return sites


def estimate_attributions(main: MainPass, recording: Recording) -> tuple[AttributionResult, ...]:
    """Returns the attributions that a request would get, all of them zeros.

    Args:
        main: the request's main pass, a forward pass only.
        recording: what was recorded of `attribution_sites` in that pass.

    Raises:
        CutawayError: an attribution is not possible, as far as no further pass is needed to know.
    """
    plan = main.plan
    results: dict[int, list[AttributionResult]] = {number: [error] for number, error in plan.failed.items()}
    if not plan.attributions:
        return in_request_order(results)
    rows = qualifying_rows(main)

    def read_neuron(module: str) -> Tensor:
        parts = [part for call in recording.calls[module] for part in call.captured(Point.OUTPUT).values()]
        return neuron_output(shape_only.with_zeros(parts[0]).values if parts else None, module)

    for index, number in enumerate(plan.numbers):
        try:
            with attribution_errors(number):
                refuse_uncalled_modules(main, index)
                found = problems(main, index, read_neuron)
                results[number] = [_estimate(problem, main, recording, rows) for problem in found]
        except CutawayError as failure:
            results[number] = [plan.in_place(plan.request.attributions[index], failure)]
    return in_request_order(results)


def _estimate(
    problem: AttributionProblem, main: MainPass, recording: Recording, rows: Sequence[int] | None
) -> AttributionResult:
    method = method_of(problem.request)
    method.attribute_arguments(problem)  # which may refuse the target
    if rows is not None and not rows:
        return AttributionResult(type(problem.request).__name__, problem.module, {})
    values = _values(problem, main, recording)
    by_row = torch.zeros(problem.rows, dtype=torch.float64)
    has_sums = problem.baselines or method.satisfies_conservation
    sums = CompletenessSums(by_row, by_row, by_row, by_row) if has_sums else None
    return replace(
        attribution_result(problem, values, sums, by_row if method.differentiates else None),
        checks=tuple(_checks(problem, main.plan.request.check.mode)),
        standard_errors=_standard_errors(problem, main),
        tokens=token_attribution(problem, values, next(iter(recording.calls.get(problem.layer, ())), None)),
        metrics=tuple(MetricResult(field_name(type(metric)), to_numpy(by_row)) for metric in problem.request.metrics),
    )


def _standard_errors(problem: AttributionProblem, main: MainPass) -> dict[str, Array]:
    if main.plan.request.check.mode is requests.CheckMode.OFF or not isinstance(problem.request, requests.Surrogate):
        return {}
    double = torch.empty(0, dtype=torch.float64)
    data_type = main.plan.request.reply_data_type
    inputs = zip(problem.explained, problem.arguments)
    return arrays({name: shape_only.expanded_zeros(tensor.shape, double, data_type) for name, tensor in inputs})


def _values(problem: AttributionProblem, main: MainPass, recording: Recording) -> Values:
    """Returns zeros in the shapes of the attribution, by input, or for a layer method by tensor of the layer."""

    def zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
        return shape_only.expanded_zeros(shape, like, main.plan.request.reply_data_type)

    if not isinstance(problem.request, requests.LayerAttribution):
        inputs = zip(problem.explained, problem.arguments)
        return {name: zeros(tensor.shape, _like(problem, tensor, main.outputs, recording)) for name, tensor in inputs}
    found: Values = {}
    for layer in problem.layers:
        at_layer = recording.calls[layer][-1].at(Point.OUTPUT)  # of several calls Captum keeps the last
        for index, tensor in enumerate(at_layer.values()):
            name = layer_value_name(layer, "" if list(at_layer) == [""] else f"[{index}]")
            found[name] = zeros(_layer_shape(problem, tensor), tensor)
    return found


def _like(problem: AttributionProblem, explained: Tensor, outputs: Outputs, recording: Recording) -> Tensor:
    """Returns a tensor of the data type that Captum's attribution of the input ``explained`` has."""
    if isinstance(problem.request, _IN_FLOAT32):
        return torch.empty(0, dtype=torch.float32)
    if not isinstance(problem.request, requests.Perturbation):
        return explained
    if not problem.target.is_neuron:
        return outputs[problem.target.source]
    return next(iter(recording.calls[problem.target.source][0].at(Point.OUTPUT).values()))


def _layer_shape(problem: AttributionProblem, output: Tensor) -> tuple[int, ...]:
    sums_channels = isinstance(problem.request, requests.LayerGradCam)
    return (*output.shape[:1], 1, *output.shape[2:]) if sums_channels else tuple(output.shape)


def _checks(problem: AttributionProblem, mode: requests.CheckMode) -> Iterator[Check]:
    """Yields the checks of an attribution that agrees."""
    if mode is not requests.CheckMode.OFF:
        method = method_of(problem.request)
        yield _agreement(f"Captum's {type(problem.request).__name__} with {method.formula}", mode)
        if method.adds_up(problem):
            yield _agreement(compared_sums(method), mode)


def _agreement(what: str, mode: requests.CheckMode) -> Check:
    return Check(what, mode, 1.0, 1.0, 1.0, 1.0, Verdict.AGREES)
