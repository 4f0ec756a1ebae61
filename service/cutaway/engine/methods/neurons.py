"""Methods that explain a neuron, or the part of the target's gradient that flows through it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, cast

from torch import Tensor

from cutaway.contract import requests
from cutaway.contract.errors import CutawayError
from cutaway.engine.methods import gradients, perturbations
from cutaway.engine.methods.spec import Method, inapplicable, passes_at, readable_output
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.passes.pass_recorder import AttributionProblem, Changes
from cutaway.engine.passes.reference_inputs import input_point
from cutaway.engine.passes.targets import neuron_selector
from cutaway.engine.references.modified_backprop import input_gradient
from cutaway.engine.references.observation import reused_neuron_module, whole
from cutaway.engine.references.paths import neuron_conductance_passes, path_points, steps_per_pass

_PATH = gradients.ROWS[requests.IntegratedGradients]


def neuron_selectable(problem: AttributionProblem) -> AbstractContextManager[None]:
    """Returns a context that requires the neuron in the output of each call of its module: Captum takes the last."""
    neuron = cast(requests.NeuronAttribution, problem.request).neuron

    def refuse(outputs: Sequence[Sequence[Tensor]]) -> None:
        for (output,) in outputs:
            try:
                neuron_selector(neuron, output)
            except CutawayError as failure:
                raise inapplicable(
                    f"the module {problem.module!r} is called {len(outputs)} times, and one call returns "
                    f"{list(output.shape[1:])} for each example, without this neuron ({failure.message}); Captum takes "
                    "the last call: name a module that is called once"
                ) from failure

    return readable_output(problem, refuse)


def _of_neuron(base: Method, formula: str, **fields: Any) -> Method:
    """Returns ``base`` for a neuron in place of the target."""
    return replace(
        base, formula=formula, explains_neuron=True, batchable=False, model_context=neuron_selectable, **fields
    )


def _of_rectifiers(kind: type[requests.Attribution]) -> Method:
    base = gradients.ROWS[kind]
    return _of_neuron(base, base.formula.replace("df/dx", "dneuron/dx"))


def _refuse_conductance(
    model: InspectedModel, request: requests.NeuronConductance, inputs: Inputs, edits: Changes
) -> None:
    if request.neuron.slices:
        raise inapplicable(
            "the conductance of a block is the sum of its neurons' conductances, and Captum multiplies sums of their "
            "gradients instead: name one element",
            "neuron.slices",
        )
    _PATH.refuse(model, request, inputs, edits)


ROWS: dict[type[requests.Attribution], Method] = {
    requests.NeuronGradient: Method(
        whole(input_gradient),
        "dneuron/dx from the raw gradient at the input",
        reference_passes=passes_at(input_point),
        limitation=reused_neuron_module,
        explains_neuron=True,
        model_context=neuron_selectable,
    ),
    requests.NeuronIntegratedGradients: _of_neuron(
        _PATH,
        "(x - baseline) * the weighted sum of the neuron's raw gradients on the path",
        init_arguments=lambda _: {},
        satisfies_completeness=lambda _: True,
        reference_passes=passes_at(path_points, steps_per_pass),
        limitation=reused_neuron_module,
    ),
    requests.NeuronConductance: Method(
        _PATH.reference,
        "(x - baseline) * the weighted sum of df/dneuron * dneuron/dx, from raw gradients on the path",
        points=path_points,
        attribute_arguments=_PATH.attribute_arguments,
        tolerances=_PATH.tolerances,
        reference_passes=neuron_conductance_passes,
        limitation=reused_neuron_module,
        refuse=_refuse_conductance,
        model_context=neuron_selectable,
    ),
    requests.NeuronGuidedBackprop: _of_rectifiers(requests.GuidedBackprop),
    requests.NeuronDeconvolution: _of_rectifiers(requests.Deconvolution),
    requests.NeuronFeatureAblation: _of_neuron(
        perturbations.ROWS[requests.FeatureAblation],
        "neuron(x) - neuron(x with the feature at its baseline) from the module's raw outputs",
        limitation=reused_neuron_module,
    ),
}
