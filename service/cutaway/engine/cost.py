"""How often explanations run the model at most: told from the question, before any of them runs.

The unit is one example once through the model, forward and where needed backward: what Captum runs side by side costs
as much as what it runs one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from cutaway.engine import causes, hollow
from cutaway.engine.features import evaluations, features
from cutaway.engine.hooks import observing
from cutaway.engine.methods import method_of
from cutaway.engine.methods.paths import most_steps
from cutaway.engine.patience import ENDLESS, Patience
from cutaway.engine.plan import rows
from cutaway.engine.run import at_work
from cutaway.engine.subject import Inputs, Subject
from cutaway.errors import CutawayError
from cutaway.requests import (
    AtLayer,
    Attribution,
    CheckMode,
    Difference,
    Expectation,
    ExpectedGradient,
    Infidelity,
    InspectRequest,
    LayerConductance,
    LayerFeatureAblation,
    LayerFeaturePermutation,
    LayerIntegratedGradients,
    Metric,
    PathAttribution,
    Perturbation,
    Point,
    SensitivityMax,
    TopK,
    field_name,
)
from cutaway.tensors import as_array

_LOOKS = 16
"""Passes at the input that see what the model is made of: its rectifiers, a layer's calls, where a gradient is lost."""


class Sight(NamedTuple):
    """What only a pass tells: how often a layer is called, and how many units it has."""

    calls: int = 1
    units: int = 0


def costs(
    subject: Subject, request: InspectRequest, inputs: Inputs, *, patience: Patience = ENDLESS
) -> Iterator[tuple[str, int]]:
    """For each explanation its field, and how often it runs an example at most, checks and metrics included, and what
    looks for the cause of a fault. What is found out once for a model is not counted.

    Explanations that run each unit, or each call, of a layer take one forward pass to be told. One that cannot be
    answered costs nothing here: it is refused for that.

    Args:
        subject: the model.
        request: the question.
        inputs: its tensors, on the model's device.
        patience: how long the caller waits.
    """
    for index, attribution in enumerate(request.attributions):
        try:
            points = _points(subject, request, attribution, inputs, patience)
        except CutawayError:
            points = 0
        yield f"attributions[{index}].{field_name(type(attribution))}", points * rows(inputs)


def _points(
    subject: Subject, request: InspectRequest, attribution: Attribution, inputs: Inputs, patience: Patience
) -> int:
    """How often one explanation runs the whole batch."""
    checked = request.check.mode is not CheckMode.OFF
    sight = _sight(subject, attribution, inputs, patience)
    method, target = method_of(attribution), attribution.target or request.target
    once = _visits(attribution, inputs, sight)
    # A second computation; of a method that Captum overrides values for there may be two passes for each of Captum's.
    again = once * (1 if method.own is None else 2) + (_finer(attribution) if method.adds_up(attribution) else 0)
    copies = attribution.noise.n_samples if attribution.noise else 1
    judging = sum(_METRICS[type(metric)](metric, once * copies) for metric in attribution.metrics)
    classes = target.k if isinstance(target, TopK) and method.has_target else 1
    return classes * ((once + again * sight.calls * checked) * copies + judging + _LOOKS)


def _visits(attribution: Attribution, inputs: Inputs, sight: Sight) -> int:
    kind = next(each for each in type(attribution).__mro__ if each in _VISITS)
    return _VISITS[kind](attribution, inputs, sight)


def _finer(attribution: Attribution) -> int:
    """The steps by which the cause of a missing sum is looked for."""
    if not isinstance(attribution, PathAttribution):
        return 0
    steps = most_steps(attribution) if attribution.max_delta is not None else attribution.n_steps
    finer = sum(more for more in (2 * steps, 4 * steps, 8 * steps) if more <= max(2 * steps, causes.FINEST))
    return 2 * finer if isinstance(attribution, LayerConductance) else finer


def _steps(attribution: PathAttribution) -> int:
    """All steps together, where they are doubled until attributions add up."""
    steps, most = attribution.n_steps, most_steps(attribution)
    total = steps
    while attribution.max_delta is not None and 0 < steps < most:
        steps = min(2 * steps, most)
        total += steps + _ENDS
    return total


def _samples(attribution: Expectation) -> int:
    return max(map(len, map(as_array, attribution.baselines.values())), default=0)


_ENDS = 2
"""The input and the baseline."""

_VISITS: dict[type, Callable[[Any, Inputs, Sight], int]] = {
    Attribution: lambda *_: _ENDS,
    PathAttribution: lambda asked, *_: _steps(asked) + _ENDS,
    LayerConductance: lambda asked, *_: 2 * (_steps(asked) + _ENDS),  # each of Captum's passes repeats a point
    Difference: lambda *_: 2 * _ENDS,
    Expectation: lambda asked, *_: 2 * _ENDS * _samples(asked),
    ExpectedGradient: lambda asked, *_: 3 * asked.n_samples + _samples(asked),
    Perturbation: lambda asked, inputs, _: evaluations(asked, features(asked, inputs).count) + _ENDS,
    LayerFeatureAblation: lambda _, __, sight: sight.units + _ENDS,
    LayerFeaturePermutation: lambda _, __, sight: sight.units + _ENDS,
}
"""How many points of a batch Captum visits, the ends that its answer is held against among them; by the nearest class
that a method is of."""

_METRICS: dict[type[Metric], Callable[[Any, int], int]] = {
    Infidelity: lambda metric, _: metric.n_samples + 1,
    SensitivityMax: lambda metric, explanation: (metric.n_samples + 1) * explanation,
}


def _sight(subject: Subject, attribution: Attribution, inputs: Inputs, patience: Patience) -> Sight:
    if not isinstance(attribution, (LayerFeatureAblation, LayerFeaturePermutation, LayerIntegratedGradients)):
        return Sight()
    return _seen(subject, attribution, inputs, patience)


def _seen(subject: Subject, attribution: AtLayer, inputs: Inputs, patience: Patience) -> Sight:
    layer = subject.tree.resolve(attribution.layer)
    with (
        at_work(subject, patience),
        torch.no_grad(),
        subject.passes.aside(),
        subject.dice(),
        observing(subject.tree, {layer: {Point.OUTPUT: hollow.OfValue()}}) as seen,
        seen.forward(),
    ):
        subject.run(inputs)
    calls = seen.calls[layer]
    sizes = [part.values.numel() for call in calls for part in call.parts(Point.OUTPUT).values()]
    return Sight(max(1, len(calls)), max(sizes, default=0) // rows(inputs))
