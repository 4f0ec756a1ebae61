"""Metrics of the quality of an attribution: a new one is a new row of the table, and its reference is in the tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from captum import metrics as captum_metrics
from torch import Tensor, nn

from cutaway.contract import requests
from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.requests import CheckMode, Metric
from cutaway.contract.results import Better, Cause, Check, MetricResult, RowCheck, TokenAttribution, Verdict
from cutaway.engine.hooks.axes import known_row_axes
from cutaway.engine.hooks.capture_spec import watching
from cutaway.engine.hooks.observe import calling_first
from cutaway.engine.hooks.recording import in_backward
from cutaway.engine.methods import feature_metrics, spec
from cutaway.engine.methods.captum_call import drawing, explain
from cutaway.engine.methods.feature_metrics import Judged, Measured, as_tuple, of_rows, spearman
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.passes.features import baselines, feature_numbers
from cutaway.engine.passes.pass_recorder import (
    AttributionProblem,
    ResolvedAttribution,
    Values,
    cached_per_problem,
    interleave_copies,
    split_copies,
)
from cutaway.engine.passes.targets import element
from cutaway.engine.references.observation import observe_forward
from cutaway.engine.runtime.numerics import to_numpy

RANDOM = 3
"""How many attributions of random numbers are judged beside the attribution."""

_MOST_STEPS = 1000


def metrics(
    problem: AttributionProblem, values: Values, tokens: Callable[[], TokenAttribution | None]
) -> tuple[MetricResult, ...]:
    """Computes the request's metrics for ``values``, the attribution of ``problem``; each draws from the seed anew.

    ``tokens``: returns its sums by token, of an embedding; else None.

    Raises:
        InvalidArgument: with the field at fault; not for a metric of `Quality`, which is left out instead.
    """
    if not problem.request.is_judged:
        return ()
    asked, problem = problem.request.metrics, replace(problem, shared=None)  # outputs of other weights are others
    results, judged = [], Judged(problem, values, tokens())
    for index, metric in enumerate((*asked, *_of_quality(problem))):
        try:
            with at(f"metrics[{index}]"), drawing(problem):
                results.append(_measured(metric, judged))
        except CutawayError as failure:
            if index < len(asked) or failure.reason != Reason.METHOD_INAPPLICABLE:
                raise
    return tuple(results)


def _measured(metric: Metric, judged: Judged) -> MetricResult:
    row = METRICS[type(metric)]
    values, curve = row.measure(metric, judged)
    others = [row.measure(metric, judged.at_random())[0] for _ in range(RANDOM)] if row.is_compared else []
    return MetricResult(
        requests.field_name(type(metric)),
        _numbers(values),
        _numbers(torch.stack([other.double() for other in others]).mean(dim=0)) if others else None,
        None if curve is None else _numbers(curve),
        row.better,
    )


def _numbers(values: Tensor) -> Any:
    return to_numpy(values.detach().cpu().double())


def outlines(problem: AttributionProblem) -> tuple[MetricResult, ...]:
    """Returns results of the request's metrics with zeros, before anything runs."""
    found, rows = [], problem.rows
    for metric in (*problem.request.metrics, *_of_quality(problem)):
        row = METRICS[type(metric)]
        points = row.points(metric, problem)
        curve, random = np.zeros((rows, points)) if points else None, np.zeros(rows) if row.is_compared else None
        found.append(MetricResult(requests.field_name(type(metric)), np.zeros(rows), random, curve, row.better))
    return tuple(found)


def metric_passes(attribution: ResolvedAttribution, explanation: int) -> int:
    """Returns how many passes all metrics of ``attribution`` take at most; an explanation takes ``explanation``.

    Metrics with the same ball share its explanations.
    """
    asked = (*attribution.request.metrics, *_of_quality(attribution))
    balls = {
        (metric.n_samples, metric.radius): metric.n_samples * explanation
        for metric in asked
        if isinstance(metric, requests.Nearby) and type(metric) in _SHARING
    }
    return sum(balls.values()) + sum(METRICS[type(metric)].passes(metric, explanation) for metric in asked)


def _defaults(quality: requests.Quality) -> tuple[Metric, ...]:
    needed = (requests.Localisation, requests.RelativeRepresentationStability)  # they have parameters without defaults
    weights = () if quality.randomisation else (requests.ParameterRandomisation, requests.RandomisedComplexity)
    return tuple(kind() for kind in METRICS if not issubclass(kind, (*needed, *weights)))


def _of_quality(problem: ResolvedAttribution) -> Iterator[Metric]:
    """Yields the metrics of the request's `Quality` that apply, as far as that is known before anything runs."""
    request = problem.request
    for metric in () if request.quality is None else _defaults(request.quality):
        try:
            refuse_metric(problem.model, metric, request, problem.inputs, problem.explained)
        except CutawayError:
            continue
        yield metric


def refuse_metric(
    model: InspectedModel, metric: Any, request: requests.Attribution, inputs: Inputs, explained: Sequence[str]
) -> None:
    """Raises for a metric that cannot be computed for ``request``, before anything runs.

    ``explained``: the names of the inputs that the metric perturbs.

    Raises:
        InvalidArgument: fields are relative to the metric's message.
    """
    kind, is_of_layer = type(metric), isinstance(request, requests.LayerAttribution)
    if isinstance(metric, requests.Infidelity) and is_of_layer:
        raise spec.inapplicable(
            f"infidelity perturbs inputs, and {type(request).__name__} explains a layer: use it with a method that "
            "explains inputs, or use sensitivity_max"
        )
    if kind in _OF_WEIGHTS and isinstance(request, (requests.LRP, requests.LayerLRP)):
        raise spec.inapplicable("Captum's LRP changes weights itself, which here are random: use another method")
    with at(requests.field_name(kind)):
        if hasattr(metric, "n_samples"):
            spec.refuse_samples(metric.n_samples)
        if not 1 <= getattr(metric, "n_steps", 1) <= _MOST_STEPS:
            raise error(Reason.INVALID_VALUE, f"{metric.n_steps} steps; from 1 to {_MOST_STEPS}", "n_steps")
        if isinstance(metric, requests.RelativeRepresentationStability):
            with at("module"):
                model.tree.resolve(metric.module)
        if isinstance(metric, requests.Removal) and not is_of_layer:
            baselines(metric.baselines, inputs, explained, model.special_tokens)
            feature_numbers(metric, inputs, explained) if metric.masks else None
    for name in explained if kind in _MOVING else ():
        spec.refuse_integers("the metric perturbs", name, inputs[name])


# Robustness: explanations of inputs nearby.


def _sensitivity_max(metric: requests.SensitivityMax, judged: Judged) -> Measured:
    """Returns the maximum over samples of ``|attribution(perturbed x) - attribution(x)| / |attribution(x)|``, [batch].

    Captum perturbs the input within a ball of the given radius. Yeh et al. 2019, arXiv:1901.09392.
    """
    problem = judged.problem

    def attribute(inputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        batches = split_copies(as_tuple(inputs), len(as_tuple(inputs)[0]) // problem.rows)
        attributions = [_attribution_at(problem, batch) for batch in batches]
        return tuple(interleave_copies(tensors).contiguous() for tensors in zip(*attributions))

    return captum_metrics.sensitivity_max(
        attribute,
        tuple(tensor.detach() for tensor in problem.arguments),
        perturb_radius=metric.radius,
        n_perturb_samples=metric.n_samples,
    ), None


def _attribution_at(problem: AttributionProblem, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Returns the attribution at other inputs; a method that draws random numbers draws the same ones."""
    # Captum's perturbations are float32.
    changed = {name: tensor.to(problem.inputs[name].dtype) for name, tensor in zip(problem.explained, inputs)}
    perturbed = replace(problem, inputs={**problem.inputs, **changed})
    attribution = explain(perturbed, perturbed.forward)
    for name, value in attribution.items():
        of_rows(problem, name, value)
    return tuple(attribution.values())


def _nearby(metric: requests.Nearby, judged: Judged) -> list[tuple[AttributionProblem, Tensor]]:
    """Returns problems with inputs inside the ball, as Captum draws them, and the numbers of their explanations."""

    def moved(tensor: Tensor) -> Tensor:
        return tensor + torch.empty(tensor.shape).uniform_(-metric.radius, metric.radius).to(tensor)

    key = "nearby", metric.n_samples, metric.radius
    if key not in judged.known:  # all metrics draw from one seed, and get the same ball
        problems = [judged.moved(moved) for _ in range(metric.n_samples)]
        with drawing(judged.problem):
            judged.known[key] = [(problem, judged.again(problem)) for problem in problems]
    found: list[tuple[AttributionProblem, Tensor]] = judged.known[key]
    return found


def _sensitivity_mean(metric: requests.SensitivityMean, judged: Judged) -> Measured:
    distances = [(other - judged.flat).norm(dim=1) / judged.flat.norm(dim=1) for _, other in _nearby(metric, judged)]
    return torch.stack(distances).mean(dim=0), None


def _lipschitz(metric: requests.LocalLipschitz, judged: Judged) -> Measured:
    """Returns the maximum over samples of ``|a(x) - a(x')| / |x - x'|``."""
    here, found = _input_numbers(metric, judged.problem), []
    for problem, other in _nearby(metric, judged):
        found.append((other - judged.flat).norm(dim=1) / (_input_numbers(metric, problem) - here).norm(dim=1))
    return torch.stack(found).amax(dim=0), None


_LEAST = 1e-6
"""The smallest number by which relative stabilities divide."""


def _stability(
    of: Callable[[Any, AttributionProblem], Tensor], relative: bool, metric: requests.Nearby, judged: Judged
) -> Measured:
    """Returns the maximum over samples of ``|(a(x) - a(x')) / a(x)| / max(|(o(x) - o(x')) / o(x)|, 1e-6)``.

    ``o`` is ``of``; without ``relative``, its change is not divided by it. Zeros in a denominator are 1e-6.
    """
    here, predicted, found = of(metric, judged.problem), _classes(judged.problem), []
    for problem, other in _nearby(metric, judged):
        change = of(metric, problem) - here
        moved = (_over(change, here) if relative else change).norm(dim=1).clamp(min=_LEAST)
        ratio = _over(other - judged.flat, judged.flat).norm(dim=1) / moved
        found.append(ratio.where(_classes(problem) == predicted, -math.inf))
    largest = torch.stack(found).amax(dim=0)
    return largest.where(largest > -math.inf, math.nan), None


def _over(change: Tensor, value: Tensor) -> Tensor:
    return change / value.where(value != 0, _LEAST)


def _input_numbers(_: object, problem: AttributionProblem) -> Tensor:
    return torch.cat([tensor.detach().double().reshape(problem.rows, -1) for tensor in problem.arguments], dim=1)


@cached_per_problem
def _output(problem: AttributionProblem) -> Tensor:
    with torch.no_grad():
        return of_rows(problem, problem.target.source, problem.read(problem.inputs)).double()


def _classes(problem: AttributionProblem) -> Tensor:
    """Returns the class of each row, [batch]; 0 without classes."""
    return _output(problem).argmax(dim=1)


def _representation(metric: requests.RelativeRepresentationStability, problem: AttributionProblem) -> Tensor:
    module = problem.model.tree.resolve(metric.module)
    calls = observe_forward(problem, {module: watching(requests.Point.OUTPUT)})[module]
    seen = [(number, *each) for number, call in enumerate(calls) for each in call.at(requests.Point.OUTPUT).items()]
    number, path, first = seen[0] if seen else (0, "", torch.empty(()))
    place, axes = (requests.Point.OUTPUT, path, number), known_row_axes(problem.model, problem.inputs)
    axis = axes.of(module, place, first.shape, problem.rows)
    if axis is None:
        what = f"{metric.module!r} returned no tensor with the {problem.rows} rows on an axis"
        raise error(Reason.METHOD_INAPPLICABLE, what, "module")
    return first.movedim(axis, 0).reshape(problem.rows, -1).double().to(problem.model.device)


# Randomisation: the explanation of a model with other weights, and that of another class.

INSENSITIVE = 0.8
"""The rank correlation with the explanation of random weights from which an attribution is in doubt."""

_FEWEST = 16
"""Attributions of fewer numbers are not doubted: two random ones of 16 correlate like that once in 5,000 times."""


def _own(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.is_floating_point():
            yield name, parameter


def _owners(problem: AttributionProblem) -> list[nn.Module]:
    """Returns the modules with floating parameters of their own, those near the output first."""
    return [module for module in problem.model.module.modules() if any(True for _ in _own(module))][::-1]


def _random_parameters(owners: Sequence[nn.Module]) -> dict[nn.Parameter, nn.Parameter]:
    """Returns another parameter for each, from a normal distribution with its mean and its standard deviation."""
    drawn: dict[nn.Parameter, nn.Parameter] = {}
    for own in (parameter for owner in owners for _, parameter in _own(owner)):
        if own not in drawn:
            spread, mean = torch.std_mean(own.detach().double().cpu(), correction=0)
            drawn[own] = nn.Parameter((torch.randn(own.shape) * spread + mean).to(own), own.requires_grad)
    return drawn


@contextmanager
def _with_parameters(problem: AttributionProblem, others: dict[nn.Parameter, nn.Parameter]) -> Iterator[None]:
    """Gives the model ``others`` in place of its parameters in every forward pass of the block, and writes to none.

    Between two passes, and for other requests, the model is as it was.

    Raises:
        InvalidArgument: ``METHOD_INAPPLICABLE``: a backward pass runs a forward again, without these parameters.
    """
    modules = problem.model.module.modules()
    places = [(module, name, own) for module in modules for name, own in _own(module) if own in others]

    def refuse_again() -> None:
        if in_backward():
            text = "the model runs its forward again during the backward pass (activation checkpointing)"
            raise spec.inapplicable(f"{text}, with its own weights")

    @contextmanager
    def swapped() -> Iterator[None]:
        refuse_again()
        try:
            for module, name, own in places:
                setattr(module, name, others[own])  # an LSTM keeps a second list of its parameters, and renews it
            yield
        finally:
            for module, name, own in places:
                setattr(module, name, own)

    with calling_first({module for module, *_ in places}, refuse_again), problem.model.passes_inside(swapped):
        yield


def _randomised(judged: Judged, part: float) -> Tensor:
    """Returns the numbers of the explanation of the model with random weights in that ``part`` of its layers, from the
    output on; the same weights in every part."""
    owners, known = _owners(judged.problem), judged.known
    if not owners:
        raise spec.inapplicable("the model has no weights of floats")
    if "parameters" not in known:
        known["parameters"] = _random_parameters(owners)
    count = round(len(owners) * part)
    if ("randomised", count) not in known:
        chosen = {own for owner in owners[:count] for _, own in _own(owner)}
        others = {own: other for own, other in known["parameters"].items() if own in chosen}
        with _with_parameters(judged.problem, others), drawing(judged.problem):
            known["randomised", count] = judged.again(judged.problem)
    found: Tensor = known["randomised", count]
    return found


def _steps(metric: requests.ParameterRandomisation, problem: AttributionProblem) -> int:
    return min(metric.n_steps, len(_owners(problem)))


def _randomisation(metric: requests.ParameterRandomisation, judged: Judged) -> Measured:
    steps = _steps(metric, judged.problem)
    parts = [step / steps for step in range(1, steps + 1)] or [1.0]
    curve = torch.stack([spearman(judged.flat, _randomised(judged, part)) for part in parts], dim=1)
    return curve[:, -1], curve


def _randomised_complexity(_: requests.RandomisedComplexity, judged: Judged) -> Measured:
    before, after = feature_metrics.entropy(judged.flat.abs()), feature_metrics.entropy(_randomised(judged, 1.0).abs())
    return (after - before) / before, None


def _random_logit(_: requests.RandomLogit, judged: Judged) -> Measured:
    problem, positions = judged.problem, judged.problem.target.positions
    with torch.no_grad():
        classes = problem.read(problem.inputs).shape[-1] if positions is not None else 0
    if positions is None or classes < 2:
        raise spec.inapplicable("the target is no class among several: there is no other one to explain")
    other = positions.clone()
    other[:, -1] = (other[:, -1] + torch.randint(1, classes, (len(other),)).to(other)) % classes
    with drawing(problem):
        numbers = judged.again(replace(problem, target=element(problem.target.source, other)))
    return spearman(judged.flat, numbers), None


def insensitive(results: Sequence[MetricResult], values: Values, mode: CheckMode) -> tuple[Check, ...]:
    """Returns a check with a doubt, if checks are asked for and a row has nearly the same explanation with random
    weights."""
    name = requests.field_name(requests.ParameterRandomisation)
    found = next((result.values for result in results if result.name == name), None)
    count = sum(value[0].numel() for value in values.values())
    if mode is CheckMode.OFF or found is None or count < _FEWEST or not (found >= INSENSITIVE).any():
        return ()
    reason = (
        "with random weights the explanation is nearly the same (rank correlation {:.2f}): it shows the input, and not "
        "what the model learned"
    )
    rows = tuple(
        RowCheck(0.0, Verdict.INCONCLUSIVE, reason.format(value), Cause.INSENSITIVE_TO_WEIGHTS)
        if value >= INSENSITIVE
        else RowCheck(0.0, Verdict.AGREES)
        for value in found
    )
    worst = reason.format(np.nanmax(found))
    compared = "the explanation, and that of the model with random weights"
    verdict, cause = Verdict.INCONCLUSIVE, Cause.INSENSITIVE_TO_WEIGHTS
    return (Check(compared, mode, 0.0, 0.0, float(np.nanmax(found)), INSENSITIVE, verdict, worst, cause, rows),)


def _invariance(metric: requests.InputInvariance, judged: Judged) -> Measured:
    """Returns ``|a'(x + m) - a(x)| / |a(x)|``, where a' explains the model that subtracts m."""
    problem, count = judged.problem, len(judged.problem.explained)

    def forward(*tensors: Tensor) -> Tensor:
        return problem.forward(*(tensor - metric.shift for tensor in tensors[:count]), *tensors[count:])

    with drawing(problem):
        shifted = judged.again(judged.moved(lambda tensor: tensor + metric.shift), forward)
    return (shifted - judged.flat).norm(dim=1) / judged.flat.norm(dim=1), None


# The table.

Measure: TypeAlias = Callable[[Any, Judged], Measured]


class Row(NamedTuple):
    """A row of the table of metrics.

    Attributes:
        measure: returns its values.
        better: which values are better.
        passes: returns how many passes it takes at most, from itself and from those of an explanation.
        is_compared: whether attributions of random numbers are judged beside it.
        points: returns how many points its curve has.
    """

    measure: Measure
    better: Better | None
    passes: Callable[[Any, int], int] = lambda *_: 0
    is_compared: bool = False
    points: Callable[[Any, AttributionProblem], int] = lambda *_: 0


_removal = partial(Row, is_compared=True, points=lambda metric, _: metric.n_steps + 1)
_at_once = partial(Row, passes=lambda *_: 2 * (1 + RANDOM), is_compared=True)
_stable = partial(Row, better=Better.LOWER, passes=lambda metric, _: metric.n_samples + 2)


def _steps_of_removal(orders: int) -> Callable[[Any, int], int]:
    return lambda metric, _: (1 + RANDOM) * orders * (metric.n_steps + 1)


METRICS: dict[type[Metric], Row] = {
    requests.Deletion: _removal(feature_metrics.deletion, Better.LOWER, _steps_of_removal(1)),
    requests.Insertion: _removal(feature_metrics.insertion, Better.HIGHER, _steps_of_removal(1)),
    requests.SymmetricRelevanceGain: _removal(feature_metrics.gain, Better.HIGHER, _steps_of_removal(2)),
    requests.FaithfulnessCorrelation: Row(
        feature_metrics.correlation, Better.HIGHER, lambda metric, _: metric.n_samples + 1, is_compared=True
    ),
    requests.Sufficiency: _at_once(partial(feature_metrics.of_most_relevant, keeps=True), Better.LOWER),
    requests.Comprehensiveness: _at_once(partial(feature_metrics.of_most_relevant, keeps=False), Better.HIGHER),
    requests.Infidelity: Row(
        feature_metrics.infidelity,
        Better.LOWER,
        lambda metric, _: (1 + RANDOM) * (metric.n_samples + 1),
        is_compared=True,
    ),
    requests.SensitivityMax: Row(
        _sensitivity_max, Better.LOWER, lambda metric, explanation: (metric.n_samples + 1) * explanation
    ),
    requests.SensitivityMean: _stable(_sensitivity_mean),
    requests.LocalLipschitz: _stable(_lipschitz),
    requests.RelativeInputStability: _stable(partial(_stability, _input_numbers, True)),
    requests.RelativeOutputStability: _stable(partial(_stability, lambda _, problem: _output(problem), False)),
    requests.RelativeRepresentationStability: _stable(
        partial(_stability, _representation, True), passes=lambda metric, _: 2 * (metric.n_samples + 2)
    ),
    requests.ParameterRandomisation: Row(
        _randomisation, Better.ZERO, lambda metric, explanation: metric.n_steps * explanation, points=_steps
    ),
    requests.RandomisedComplexity: Row(_randomised_complexity, Better.HIGHER, lambda _, explanation: explanation),
    requests.RandomLogit: Row(_random_logit, Better.LOWER, lambda _, explanation: explanation + 1),
    requests.Sparseness: Row(feature_metrics.sparseness, Better.HIGHER, is_compared=True),
    requests.Complexity: Row(feature_metrics.complexity, Better.LOWER, is_compared=True),
    requests.EffectiveComplexity: Row(feature_metrics.effective, Better.LOWER, is_compared=True),
    requests.InputInvariance: Row(_invariance, Better.LOWER, lambda _, explanation: explanation),
    requests.PointingGame: Row(feature_metrics.pointing, Better.HIGHER, is_compared=True),
    requests.RelevanceMass: Row(feature_metrics.mass, Better.HIGHER, is_compared=True),
    requests.RelevanceRank: Row(feature_metrics.rank, Better.HIGHER, is_compared=True),
}
"""The metrics."""

_SHARING = tuple(kind for kind in METRICS if issubclass(kind, requests.Nearby) and kind is not requests.SensitivityMax)
_OF_WEIGHTS = (requests.ParameterRandomisation, requests.RandomisedComplexity)
_MOVING = (requests.Infidelity, requests.SensitivityMax, *_SHARING, requests.InputInvariance)
"""Metrics that add numbers to inputs."""
