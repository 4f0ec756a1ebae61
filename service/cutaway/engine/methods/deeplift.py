"""DeepLIFT with the Rescale rule, from one baseline or from a distribution of baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from captum import attr

from cutaway import requests
from cutaway.engine.methods.deeplift_errors import translated
from cutaway.engine.methods.neurons import neuron_selectable
from cutaway.engine.methods.spec import Method
from cutaway.engine.methods.validation import refuse_row_edits, refuse_row_target
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.passes.pass_recorder import AttributionProblem, Changes
from cutaway.engine.references import deeplift as references
from cutaway.engine.references.deeplift_limits import limitation
from cutaway.engine.references.nonlinearities import nonlinearities
from cutaway.engine.references.rescale_rule import MODULE_RULES, rescale_softmax
from cutaway.engine.runtime.numerics import EXACT
from cutaway.errors import Reason, error

_ONE_PASS = "runs inputs and baselines in one pass"

_CAPTUM_ATTRIBUTES = ("input", "output")
"""What Captum sets on each module that it hooks, and leaves there if no gradient reaches the module."""


def _refuse(model: InspectedModel, request: Any, inputs: Inputs, edits: Changes) -> None:
    refuse_row_edits(request, edits, _ONE_PASS)
    for name, numbered in edits.items():
        module = model.tree.modules.get(name if name in model.tree.modules else name.rpartition(":")[0])
        if type(module) in MODULE_RULES and any(edit.point.is_gradient for _, edit in numbered):
            raise error(
                Reason.EDIT_INAPPLICABLE,
                f"the gradient at {name!r} is edited, and the method overrides it: it can do one only",
            )
    if isinstance(request, requests.Expectation):
        _refuse_one_sample(request)


def _refuse_one_sample(request: requests.Expectation) -> None:
    for name, samples in request.baselines.items():
        if len(samples) < 2:
            raise error(
                Reason.INVALID_VALUE,
                "one sample is no distribution: send two or more, or ask "
                f"{type(request).__name__.removesuffix('Shap')}",
                f"baselines.by_input.{name}",
            )


def _arguments(problem: AttributionProblem) -> dict[str, Any]:
    refuse_row_target(problem, _ONE_PASS)
    return {"baselines": tuple(problem.baselines[name] for name in problem.explained)}


@contextmanager
def _modules_restored(problem: AttributionProblem) -> Iterator[None]:
    """A context that removes what Captum leaves on modules, and translates Captum's errors."""
    hooked = [module for module in problem.model.tree.modules.values() if type(module) in MODULE_RULES]
    before = [{name: vars(module)[name] for name in _CAPTUM_ATTRIBUTES if name in vars(module)} for module in hooked]
    try:
        yield
    except Exception as failure:
        raise translated(problem, failure) from failure
    finally:
        for module, attributes in zip(hooked, before):
            for name in _CAPTUM_ATTRIBUTES:
                vars(module).pop(name, None)
            vars(module).update(attributes)


@contextmanager
def _neuron_modules_restored(problem: AttributionProblem) -> Iterator[None]:
    with neuron_selectable(problem), _modules_restored(problem):
        yield


def _has_exact_rules(problem: AttributionProblem) -> bool:
    """The rule for a softmax subtracts a mean, after which multipliers need not add up."""
    return all(each.rule is not rescale_softmax for each in nonlinearities(problem))


_RULE = "multipliers of a pass in which raw hooks let (y - y0) / (x - x0) pass back through each nonlinearity"


def _row(captum: Callable[..., Any], *, shap: bool = False, of_layer: bool = False, of_neuron: bool = False) -> Method:
    difference = "raw output at x - raw output at the baseline" if of_layer else "x - baseline"
    return Method(
        captum,
        references.layer_deeplift if of_layer else references.deeplift,
        f"({difference}) * {_RULE}{', the mean over the samples' if shap else ''}",
        points=references.deeplift_points,
        attribute_arguments=_arguments,
        satisfies_completeness=lambda _: True,
        completeness_tolerances=EXACT,
        sums_prove_rules=_has_exact_rules,
        reference_passes=references.deeplift_passes,
        limitation=limitation,
        applies_to_modules=True,
        explains_neuron=of_neuron,
        refuse=_refuse,
        model_context=_neuron_modules_restored if of_neuron else _modules_restored,
    )


ROWS: dict[type[requests.Attribution], Method] = {
    requests.DeepLift: _row(attr.DeepLift),
    requests.LayerDeepLift: _row(attr.LayerDeepLift, of_layer=True),
    requests.NeuronDeepLift: _row(attr.NeuronDeepLift, of_neuron=True),
    requests.DeepLiftShap: _row(attr.DeepLiftShap, shap=True),
    requests.LayerDeepLiftShap: _row(attr.LayerDeepLiftShap, shap=True, of_layer=True),
    requests.NeuronDeepLiftShap: _row(attr.NeuronDeepLiftShap, shap=True, of_neuron=True),
}
