"""Expected gradients: the mean over points drawn between baselines and noisy copies of the input."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from captum import attr

from cutaway import requests
from cutaway.engine.methods.layer_output import readable_output
from cutaway.engine.methods.neurons import neuron_selectable
from cutaway.engine.methods.spec import Method, passes_at
from cutaway.engine.methods.validation import (
    refuse_half_precision,
    refuse_row_edits,
    refuse_row_target,
    refuse_samples,
    refuse_stdev,
)
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.passes.pass_recorder import AttributionProblem, Changes
from cutaway.engine.references import expected_gradients as references
from cutaway.engine.references.observation import reused_neuron_module

_ONE_PASS = "runs all samples in one pass"


def _arguments(problem: AttributionProblem) -> dict[str, Any]:
    request = cast(requests.ExpectedGradient, problem.request)
    if request.n_samples > 1:
        refuse_row_target(problem, _ONE_PASS)
    return {
        "baselines": tuple(problem.baselines[name] for name in problem.explained),
        "n_samples": request.n_samples,
        "stdevs": float(request.stdev),
    }


def _refuse(_: InspectedModel, request: requests.ExpectedGradient, inputs: Inputs, edits: Changes) -> None:
    refuse_samples(request.n_samples)
    refuse_stdev(request.stdev)
    for name in request.baselines:
        refuse_half_precision(name, inputs[name])
    if request.n_samples > 1:
        refuse_row_edits(request, edits, _ONE_PASS)


_row = partial(Method, attribute_arguments=_arguments, uses_randomness=True, refuse=_refuse)
_MEAN = "the mean over the seed's draws"

ROWS: dict[type[requests.Attribution], Method] = {
    requests.GradientShap: _row(
        attr.GradientShap,
        references.expected_gradients,
        f"(noisy x - baseline) * the raw gradient between the two, {_MEAN}",
        points=references.sample_points,
        points_per_pass=references.samples_per_pass,
    ),
    requests.LayerGradientShap: _row(
        attr.LayerGradientShap,
        references.layer_expected_gradients,
        f"(raw output at noisy x - raw output at the baseline) * the layer's raw gradient between the two, {_MEAN}",
        points=references.layer_sample_points,
        reference_passes=references.layer_passes,
        model_context=partial(readable_output, field="layer", several=True),
    ),
    requests.NeuronGradientShap: _row(
        attr.NeuronGradientShap,
        references.expected_gradients,
        f"(noisy x - baseline) * the neuron's raw gradient between the two, {_MEAN}",
        points=references.sample_points,
        reference_passes=passes_at(references.sample_points, references.samples_per_pass),
        limitation=reused_neuron_module,
        explains_neuron=True,
        model_context=neuron_selectable,
    ),
}
