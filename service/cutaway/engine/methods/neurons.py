"""Methods that explain a neuron, or what goes through it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from captum import attr

from cutaway.engine.evidence import at_input
from cutaway.engine.method import Method
from cutaway.engine.methods import backprop, paths, perturbations
from cutaway.engine.methods.returned import only_tensor, read_by_captum
from cutaway.engine.references import backprop as gradients
from cutaway.engine.references import neurons as references
from cutaway.engine.references.paths import on_path
from cutaway.engine.references.perturbations import ablated, change
from cutaway.engine.witness import Question
from cutaway.errors import Reason, at, error
from cutaway.requests import (
    Attribution,
    FeatureAblation,
    GuidedBackprop,
    IntegratedGradients,
    NeuronConductance,
    NeuronDeconvolution,
    NeuronFeatureAblation,
    NeuronGradient,
    NeuronGuidedBackprop,
    NeuronIntegratedGradients,
    Point,
    field_name,
)

_PATH = paths.ROWS[IntegratedGradients]
_RECTIFIERS = backprop.ROWS[GuidedBackprop]
_ABLATION = perturbations.ROWS[FeatureAblation]


@contextmanager
def _selectable(question: Question) -> Iterator[None]:
    """Where Captum looks for the neuron, there is one: it looks into what the module's last call returned."""
    request: Any = question.request
    field = f"{field_name(type(request))}.neuron.module"
    with at(field):
        found = references.calls(question)
        for call in found:
            tensor = only_tensor(question.module, call.at(Point.OUTPUT), question.rows)
            _refuse_absent(question.module, request.neuron.index, tuple(tensor.shape[1:]), len(found))
    with read_by_captum(question.module, field):
        yield


def _refuse_absent(module: str, index: tuple[int, ...], sizes: tuple[int, ...], times: int) -> None:
    if len(index) == len(sizes) and all(each < size for each, size in zip(index, sizes)):
        return
    raise error(
        Reason.METHOD_INAPPLICABLE,
        f"the module {module!r} is called {times} times and returns {list(sizes)} an example once, where there is no "
        f"neuron {list(index)}: Captum takes the last call; name a module that is called once",
    )


def _conductance_options(question: Question) -> dict[str, Any]:
    request: Any = question.request
    return {**_PATH.options(question), "neuron_selector": request.neuron.index}


ROWS: dict[type[Attribution], Method] = {
    NeuronGradient: Method(
        attr.NeuronGradient,
        gradients.gradient,
        at_input,
        "dneuron/dx from the raw gradient at the input",
        own=references.from_neuron,
        overlooked=references.reused,
        of_neuron=True,
        prepared=_selectable,
    ),
    NeuronIntegratedGradients: Method(
        attr.NeuronIntegratedGradients,
        references.integral,
        on_path,
        "(x - baseline) * the weighted sum of the neuron's raw gradients on the path",
        options=_PATH.options,
        adds_up=lambda _: True,
        tolerances=_PATH.tolerances,
        own=references.from_neuron_on_path,
        overlooked=references.reused,
        of_neuron=True,
        refuse=_PATH.refuse,
        prepared=_selectable,
    ),
    NeuronConductance: Method(
        attr.NeuronConductance,
        references.integral,
        on_path,
        "(x - baseline) * the weighted sum of df/dneuron * dneuron/dx, from raw gradients on the path",
        options=_conductance_options,
        tolerances=_PATH.tolerances,
        own=references.through_neuron,
        overlooked=references.reused,
        refuse=_PATH.refuse,
        prepared=_selectable,
    ),
    NeuronGuidedBackprop: Method(
        attr.NeuronGuidedBackprop,
        gradients.gradient,
        at_input,
        "dneuron/dx of a pass in which raw hooks let only what is positive of the gradient leave each ReLU",
        own=gradients.guided_passes,
        moot=references.moot,
        overlooked=references.overlooked,
        applies_to_modules=True,
        of_neuron=True,
        refuse=_RECTIFIERS.refuse,
        prepared=_selectable,
    ),
    NeuronDeconvolution: Method(
        attr.NeuronDeconvolution,
        gradients.gradient,
        at_input,
        "dneuron/dx of a pass in which raw hooks pass on what is positive of the gradient that reaches each ReLU",
        own=gradients.deconvolved_passes,
        moot=references.moot,
        overlooked=references.overlooked,
        applies_to_modules=True,
        of_neuron=True,
        refuse=_RECTIFIERS.refuse,
        prepared=_selectable,
    ),
    NeuronFeatureAblation: Method(
        attr.NeuronFeatureAblation,
        change,
        ablated,
        "neuron(x) - neuron(x with the feature at its baseline) from the module's raw outputs",
        options=_ABLATION.options,
        perturbs=True,
        overlooked=references.reused,
        of_neuron=True,
        prepared=_selectable,
    ),
}
