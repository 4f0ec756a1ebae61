"""How many passes the attributions of a request run at most, counted before any of them runs.

The unit is one example once through the model, forward and where needed backward. Examples that Captum runs in one
batch count as much as those that it runs one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutaway.contract import requests
from cutaway.contract.errors import CutawayError
from cutaway.contract.tensors import as_array
from cutaway.engine.execution.concepts import concept_passes
from cutaway.engine.execution.counterfactual import counterfactual_passes
from cutaway.engine.execution.influence import influence_passes
from cutaway.engine.execution.sweep import DIRECT_PASSES, sweep_passes
from cutaway.engine.hooks.capture_spec import CapturedValues, CaptureSpec, ShapeSpec
from cutaway.engine.hooks.tokens import RowTexts
from cutaway.engine.methods.captum_call import method_of, shares_passes
from cutaway.engine.methods.gradients import max_steps, steps_to_try
from cutaway.engine.methods.metrics import metric_passes
from cutaway.engine.model.inspected_model import CONTINUATION, arguments_kind
from cutaway.engine.passes.features import Features, cost
from cutaway.engine.passes.pass_recorder import ResolvedAttribution
from cutaway.engine.passes.targets import number_of_scalars
from cutaway.engine.planning.plan import RequestPlan
from cutaway.engine.references.observation import observe_forward

# Tensors that have a shape and a data type but no values, and need no memory: for a dry run.


def expanded_zeros(shape: Sequence[int], like: Tensor, data_type: str = "") -> Tensor:
    """Returns zeros of ``shape`` in the memory of one element, on the host.

    Args:
        shape: the shape.
        like: a tensor of the data type.
        data_type: the data type instead, by name, if ``like`` is floating; ``""`` for none.
    """
    dtype = getattr(torch, data_type) if data_type and like.is_floating_point() else like.dtype
    return torch.zeros((), dtype=dtype).expand(tuple(shape))


class GradientShape(CaptureSpec):
    """A capture of a gradient, applied to its activation, which has the same shape."""

    def apply(
        self, tensor: Tensor, result_field: str, row_axis: int | None, texts: RowTexts | None = None
    ) -> CapturedValues:
        """Returns the part captured of the gradient at ``tensor`` as meta tensors.

        Integers have no gradient: ``tensor`` itself is returned.
        """
        if not has_gradient(tensor):
            return CapturedValues(tensor.to("meta"), row_axis=row_axis)
        part = CaptureSpec(**{**vars(self), "data_type": ""}).apply(tensor.to("meta"), result_field, row_axis, texts)
        typed = self.data_type and part.values.is_floating_point()
        return part._replace(values=part.values.to(getattr(torch, self.data_type))) if typed else part


def has_gradient(tensor: Tensor) -> bool:
    """Returns whether tensors of this data type can have a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


def with_zeros(part: CapturedValues) -> CapturedValues:
    """Returns ``part`` with zeros in place of meta tensors."""
    return part.map(lambda tensor: expanded_zeros(tensor.shape, tensor))


_INVESTIGATION = 24
"""Passes at the input that find properties of the model.

They find its rectifiers, a layer's calls, where a gradient is lost, and whether nearby inputs mismatch too.
"""


class _Layer(NamedTuple):
    """The number of calls of a layer and the number of its units, which only a pass shows."""

    calls: int = 1
    units: int = 0


def costs(plan: RequestPlan) -> Iterator[tuple[str, int]]:
    """Yields for each attribution its field, and how many passes of one example it runs at most.

    Checks, metrics and the search for the cause of a fault are included. Tests that run once for a model, or now and
    then, are not. Attributions that run each unit, or each call, of a layer take one forward pass to count. One whose
    pass fails costs nothing here: it is refused for that.
    """
    explanations = 0
    for number, attribution in zip(plan.numbers, plan.attributions):
        try:
            passes = _passes_of_batch(plan, attribution)
        except CutawayError:
            passes = 0
        explanations += passes * plan.rows
        yield f"attributions[{number}].{requests.field_name(type(attribution.request))}", passes * plan.rows
    if plan.request.sweep is not None:
        yield "sweep", sweep_passes(plan)
    if plan.request.direct is not None:
        yield "direct", DIRECT_PASSES * plan.rows
    if plan.request.concepts is not None:
        yield "concepts", concept_passes(plan)
    if plan.request.influence is not None:
        yield "influence", influence_passes(plan)
    if plan.request.counterfactual is not None:
        yield "counterfactual", counterfactual_passes(plan)
    for number, attack in enumerate(plan.request.attacks):
        yield f"attacks[{number}]", _attack_passes(plan, attack, explanations)


def _attack_passes(plan: RequestPlan, attack: requests.Attack, explanations: int) -> int:
    """Returns how many passes of one example ``attack`` takes at most; ``explanations``: those of all attributions."""
    is_checked = plan.request.check.mode is not requests.CheckMode.OFF
    again = 2 if plan.request.check.mode is requests.CheckMode.INDEPENDENT else 1
    steps = attack.n_steps if isinstance(attack, requests.PGD) else 1
    if attack.search is None:
        return plan.rows * (steps * again + 1) + explanations
    search = attack.search
    if search.parameter == "n_steps":
        steps = ceil(search.upper)
    tried = ceil((search.upper - search.lower) / search.step)
    return plan.rows * (tried * (steps + 1) + is_checked * (steps * again + steps + 2) + 1) + explanations


def _passes_of_batch(plan: RequestPlan, attribution: ResolvedAttribution) -> int:
    request, method = attribution.request, method_of(attribution.request)
    is_checked = plan.request.check.mode is not requests.CheckMode.OFF
    layer = _layer(plan, attribution)
    once = _points(attribution, layer)
    # A second computation; of a method that Captum overrides values for there may be two passes for each of Captum's.
    again = once * (1 if method.reference_passes is None else 2) + (
        _finer(request) if method.satisfies_completeness(request) else 0
    )
    return _of_all(plan, attribution, once, again * layer.calls * is_checked, _INVESTIGATION)


def expected_passes(plan: RequestPlan) -> list[int]:
    """Returns for each attribution how many passes of one example it takes where its check finds no fault.

    A layer whose units or calls run one by one takes one forward pass, once for each shape of the inputs.
    """

    def expected(attribution: ResolvedAttribution) -> int:
        try:
            one_by_one = isinstance(attribution.request, _ONE_BY_ONE)
            once = _points(attribution, _remembered(plan, attribution) if one_by_one else _Layer())
            again = once * (plan.request.check.mode is requests.CheckMode.INDEPENDENT)
            return _of_all(plan, attribution, once, again, 0)
        except CutawayError:  # the attribution is refused for that
            return 0

    return [expected(attribution) for attribution in plan.attributions]


def _of_all(plan: RequestPlan, attribution: ResolvedAttribution, once: int, again: int, further: int) -> int:
    """Returns the passes of all scalars, noisy copies and metrics."""
    request = attribution.request
    copies = request.noise.n_samples if request.noise else 1
    judging = metric_passes(attribution, once * copies)
    target = request.target or plan.request.target
    scalars = (number_of_scalars(target, plan.inputs) if method_of(request).has_target else 0) or 1
    runs = 1 if shares_passes(attribution) else scalars
    if request.llm_attribution is not None and request.llm_attribution.forward_in_tokens:
        once *= plan.inputs[CONTINUATION].shape[1] if CONTINUATION in plan.inputs else 1
    return runs * once * copies + scalars * (again * copies + judging + further)


def kept_elements(plan: RequestPlan) -> int:
    """Returns how many numbers of one row a check keeps at most: the inputs, and what layers return, at each point; of
    many points sums.

    An attribution at a layer takes one forward pass for each shape of the inputs.
    """
    inputs = sum(tensor[0].numel() for tensor in plan.inputs.values())
    most = 0
    for attribution in plan.attributions:
        layer = _remembered(plan, attribution) if attribution.layer else _Layer()
        most = max(most, min(_points(attribution, layer), _SUMS) * (inputs + layer.units))
    return most


_SUMS = 8
"""The attribution, its reference, the magnitudes of its terms and what is being added, in float64."""


def _points(attribution: ResolvedAttribution, layer: _Layer) -> int:
    kind = next(base for base in type(attribution.request).__mro__ if base in _POINTS)
    return _POINTS[kind](attribution.request, attribution.features, layer)


def _finer(attribution: requests.Attribution) -> int:
    """Returns the steps of the search for the cause of a missing sum."""
    if not isinstance(attribution, requests.PathAttribution):
        return 0
    steps = max_steps(attribution) if attribution.max_delta is not None else attribution.n_steps
    finer = sum(steps_to_try(steps))
    return 2 * finer if isinstance(attribution, requests.LayerConductance) else finer


def _steps(attribution: requests.PathAttribution) -> int:
    """Returns all steps together, where they are doubled until attributions add up."""
    steps, most = attribution.n_steps, max_steps(attribution)
    total = steps
    while attribution.max_delta is not None and 0 < steps < most:
        steps = min(2 * steps, most)
        total += steps + _ENDS
    return total


def _samples(attribution: requests.Expectation) -> int:
    return max(map(len, map(as_array, attribution.baselines.values())), default=0)


_ENDS = 2
"""The input and the baseline."""

_BY_UNIT = (requests.LayerFeatureAblation, requests.LayerFeaturePermutation)
"""Methods that run each unit of a layer."""

_ONE_BY_ONE = (*_BY_UNIT, requests.LayerIntegratedGradients)
"""Methods that run each unit, or each call, of a layer."""

_POINTS: dict[type, Callable[[Any, Features, _Layer], int]] = {
    requests.Attribution: lambda *_: _ENDS,
    requests.PathAttribution: lambda request, *_: _steps(request) + _ENDS,
    # Each of Captum's passes repeats a point.
    requests.LayerConductance: lambda request, *_: 2 * (_steps(request) + _ENDS),
    requests.RescaleAttribution: lambda *_: 2 * _ENDS,
    requests.Expectation: lambda request, *_: 2 * _ENDS * _samples(request),
    requests.ExpectedGradient: lambda request, *_: 3 * request.n_samples + _samples(request),
    requests.Perturbation: lambda request, features, _: cost(request, features.count)[0] + _ENDS,
    **dict.fromkeys(_BY_UNIT, lambda _, __, layer: layer.units + _ENDS),
}
"""At how many points Captum runs the batch, those included that values are compared at; by the nearest base class."""


def _layer(plan: RequestPlan, attribution: ResolvedAttribution) -> _Layer:
    """Returns the calls and units of a layer that the method runs one by one, from a forward pass."""
    return _observed(plan, attribution) if isinstance(attribution.request, _ONE_BY_ONE) else _Layer()


def _remembered(plan: RequestPlan, attribution: ResolvedAttribution) -> _Layer:
    """Returns the calls and units of a layer for inputs of this shape."""
    shapes = tuple(tensor.shape[1:] for tensor in plan.inputs.values())
    key = _observed, attribution.layers, shapes, arguments_kind(plan.request.arguments)
    return plan.model.remembered(key, partial(_observed, plan, attribution))


def _observed(plan: RequestPlan, attribution: ResolvedAttribution) -> _Layer:
    model, sites = plan.model, {name: {requests.Point.OUTPUT: ShapeSpec()} for name in attribution.layers}
    with model.session(plan.cancellation, plan.request.arguments), model.passes.uncounted():
        seen = observe_forward(attribution, sites)
    sizes = [
        [sum(part.values.numel() for part in call.captured(requests.Point.OUTPUT).values()) for call in calls]
        for calls in seen.values()
    ]
    units = sum(max(of_layer, default=0) for of_layer in sizes) // attribution.rows
    if attribution.further_layers:
        return _Layer(2 * len(attribution.modules), units)
    return _Layer(max(1, *map(len, sizes)), units)
