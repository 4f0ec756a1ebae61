"""References for methods that integrate gradients along a path from the baseline to the input.

Notation: ``x`` is the input, ``x0`` the baseline, ``a`` the layer's output, ``f`` the target or the neuron; ``alpha_k``
and ``w_k`` are the points and weights of the quadrature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeAlias, cast

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from cutaway.contract.requests import LayerIntegratedGradients, NeuronAttribution, PathAttribution, Point, Replace
from cutaway.engine.hooks.edits import NumberedEdit
from cutaway.engine.hooks.recording import RecordedCall
from cutaway.engine.passes.pass_recorder import AttributionProblem, Pass, Values, run_passes
from cutaway.engine.passes.reference_inputs import (
    ComputedPoints,
    Evidence,
    MissingObservation,
    Points,
    QuadratureRule,
    Reference,
    host,
    input_point,
    rule,
)
from cutaway.engine.passes.targets import ResolvedTarget
from cutaway.engine.references.observation import Fold, expand_rows, target_values
from cutaway.engine.runtime.numerics import VISITED_POINTS, close, to_numpy

ELEMENTS_PER_PASS = 1 << 19
"""Captum runs a path in passes of about this many input elements, so that memory does not grow with the steps."""

MIN_ROWS, MAX_ROWS = 8, 512
"""The bounds of such a pass in rows: fewer rows only take more time, more rows save none.

With 16 rows the largest tensors of a ResNet-50 at 224 × 224 have 51 MB. From 32 MiB on, glibc takes each from the
system anew, whose empty pages then take a quarter of the time.
"""

_POINTS_AT_ONCE = 1 << 20
"""The elements of all points that are in memory at one time."""

_ELEMENTS_PER_ID = 256
"""The count of an integer input element, because an embedding follows it."""


@dataclass(frozen=True, kw_only=True)
class DrawnPath(LayerIntegratedGradients):
    """The path of a layer's integrated gradients, whose mean is taken at points that were ``drawn``."""

    drawn: tuple[float, ...] = ()


def _rule(problem: AttributionProblem, further_points: int = 0) -> QuadratureRule:
    request = cast(PathAttribution, problem.request)
    if isinstance(request, DrawnPath):
        return QuadratureRule(np.array(request.drawn), np.full(len(request.drawn), 1 / len(request.drawn)))
    return rule(request.quadrature, request.n_steps + further_points)


def _alphas(problem: AttributionProblem, further_points: int = 0) -> list[float]:
    alphas: list[float] = _rule(problem, further_points).alphas.tolist()
    return alphas


# Pass sizes.


def rows_per_pass(problem: AttributionProblem) -> int:
    """Returns how many rows Captum runs in one pass: those of one step, if each row needs its own row number, or if
    axis 0 of the layer may not be the batch."""
    alone = problem.is_row_specific or (problem.layer and not problem.is_batch_first)
    return problem.rows if alone else max(_rows_in_budget(problem), problem.rows)


def steps_per_pass(problem: AttributionProblem) -> int:
    """Returns how many steps Captum runs in one pass."""
    return rows_per_pass(problem) // problem.rows


def conductance_points_per_pass(problem: AttributionProblem) -> int:
    """Returns how many points `LayerConductance` runs in one pass: two or more, for differences between them."""
    return max(_rows_in_budget(problem) // problem.rows, 2)


def _rows_in_budget(problem: AttributionProblem) -> int:
    """Returns how many rows of such inputs have `ELEMENTS_PER_PASS` elements, within the bounds."""
    elements = sum(
        tensor.numel() * (1 if tensor.is_floating_point() else _ELEMENTS_PER_ID) for tensor in problem.inputs.values()
    )
    rows = min(MAX_ROWS, max(MIN_ROWS, ELEMENTS_PER_PASS * problem.rows // max(1, elements)))
    return min(rows, problem.most_rows or rows)


# Points.


def path_points(problem: AttributionProblem) -> Points:
    """Returns ``x0 + alpha_k * (x - x0)`` for each point of the quadrature."""
    return _points(problem, _alphas(problem))


def conductance_points(problem: AttributionProblem) -> Points:
    """Returns the points of `LayerConductance`, one more than there are steps.

    Captum runs them in several passes, each of which begins with the last point of the pass before.
    """
    alphas = _alphas(problem, further_points=1)
    steps = conductance_points_per_pass(problem) - 1
    passes = [alphas[first : first + steps + 1] for first in range(0, len(alphas) - 1, steps)]
    return _points(problem, [alpha for chunk in passes for alpha in chunk])


def layer_path_points(problem: AttributionProblem) -> list[Values]:
    """Returns the input, the baseline, and the input again for each step, at which the layer's output is replaced."""
    x = input_point(problem)
    return [*x, dict(problem.baselines), *x * cast(PathAttribution, problem.request).n_steps]


def _points(problem: AttributionProblem, alphas: Sequence[float]) -> Points:
    """Returns the points of a path, computed some at a time."""
    together = max(1, _POINTS_AT_ONCE // max(1, sum(tensor.numel() for tensor in problem.arguments)))

    def computed() -> Iterator[Values]:
        for first in range(0, len(alphas), together):
            chunk = alphas[first : first + together]
            tensors = (
                _interpolated(problem.baselines[name], problem.inputs[name], chunk) for name in problem.explained
            )
            yield from (dict(zip(problem.explained, steps)) for steps in zip(*tensors))

    return ComputedPoints(len(alphas), computed)


def _interpolated(
    start: Float[Tensor, "batch *features"], end: Float[Tensor, "batch *features"], alphas: Sequence[float]
) -> Float[Tensor, "steps batch *features"]:
    """Returns the points between two tensors.

    A factor is as precise as PyTorch makes a Python number that is multiplied by a tensor.
    """
    dtype = torch.promote_types(end.dtype, torch.float32)
    factors = torch.tensor(alphas, dtype=dtype, device=end.device).reshape(-1, *[1] * end.ndim)
    return start + (factors * (end - start).to(dtype)).to(end.dtype)


# Separate passes.


def layer_path_passes(problem: AttributionProblem) -> Iterator[Pass]:
    """Runs a pass at the input and one at the baseline; then, for each call of the layer, the steps between its two
    outputs. Of several layers, runs all this for each."""
    if problem.further_layers:
        for part in single_layers(problem):
            yield from _joint_path_passes(problem, part)
        return
    x, baseline, *_ = layer_path_points(problem)
    ends = list(run_passes(problem, [x, baseline], differentiate=False))
    yield from ends
    alphas = _alphas(problem)
    together = steps_per_pass(problem)
    for number, (at_x, at_baseline) in enumerate(zip(ends[0].layer, ends[1].layer)):
        for first in range(0, len(alphas), together):
            chunk = alphas[first : first + together]
            edits = {problem.layer: list(enumerate(_layer_edits(number, at_baseline, at_x, chunk)))}
            points = [x] * len(chunk)
            yield from run_passes(problem, points, differentiate=True, edits=edits, points_per_pass=len(chunk))


def single_layers(problem: AttributionProblem) -> list[AttributionProblem]:
    """Returns ``problem`` for each of its layers by itself."""
    return [replace(problem, layer=name, further_layers=()) for name in problem.layers]


def _joint_path_passes(problem: AttributionProblem, part: AttributionProblem) -> Iterator[Pass]:
    """Runs the ends of the layer of ``part``, and the steps on which all layers of ``problem`` go together."""
    x, baseline, *_ = layer_path_points(problem)
    yield from run_passes(part, [x, baseline], differentiate=False)
    ends = _layer_ends(problem, baseline)
    for alpha in _alphas(problem):
        yield from run_passes(part, [x], differentiate=True, edits=_edits_at(ends, alpha))


LayerEnds: TypeAlias = Mapping[str, tuple[Sequence[RecordedCall], Sequence[RecordedCall]]]
"""The calls of each layer at the input and at the baseline."""


def _layer_ends(problem: AttributionProblem, baseline: Values) -> LayerEnds:
    ends = {}
    for part in single_layers(problem):
        at_x, at_baseline = run_passes(part, [*input_point(part), dict(baseline)], differentiate=False)
        ends[part.layer] = (at_x.layer, at_baseline.layer)
    return ends


def _edits_at(ends: LayerEnds, alpha: float) -> dict[str, list[NumberedEdit]]:
    """Returns edits that replace the output of each call of the layers by that at ``alpha`` between baseline and input.

    Raises:
        MissingObservation: a layer returns other tensors for the baseline.
    """
    by_layer: dict[str, list[NumberedEdit]] = {}
    for name, (at_x, at_baseline) in ends.items():
        calls = enumerate(zip(at_baseline, at_x))
        edits = [edit for number, (start, end) in calls for edit in _layer_edits(number, start, end, [alpha])]
        by_layer[name] = list(enumerate(edits))
    return by_layer


def _layer_edits(
    number: int, at_baseline: RecordedCall, at_x: RecordedCall, alphas: Sequence[float]
) -> Iterator[Replace]:
    """Yields edits that replace the outputs of call ``number`` by those between ``at_baseline`` and ``at_x``."""
    starts, ends = at_baseline.at(Point.OUTPUT), at_x.at(Point.OUTPUT)
    for path, start in starts.items():
        if path not in ends or ends[path].shape != start.shape:
            raise MissingObservation("the layer returns other tensors for the baseline than for the input")
        if start.is_floating_point():
            steps = [start + alpha * (ends[path] - start) for alpha in alphas]
            yield Replace(call=number, path=path, tensor=to_numpy(torch.cat(steps) if len(steps) > 1 else steps[0]))


def target_at_layer_baseline(problem: AttributionProblem) -> Float64[Tensor, "batch"]:
    """Returns the target at the input if the layer returns what it returns at the baseline, on the host; of several
    baselines, the mean.

    Raises:
        MissingObservation: the layer returns other tensors for the baseline.
    """
    return torch.stack([_target_at_layers(problem, point) for point in problem.baseline_points]).mean(dim=0)


def _target_at_layers(problem: AttributionProblem, baseline: Values) -> Float64[Tensor, "batch"]:
    edits = _edits_at(_layer_ends(problem, baseline), 0.0)
    held = list(run_passes(problem, input_point(problem), differentiate=False, edits=edits))
    return target_values(Evidence(problem, held))[0]


def neuron_conductance_passes(problem: AttributionProblem) -> Iterator[Pass]:
    """Runs two passes for each point of the path; the recorded gradients are ``df/dneuron * dneuron/dx``."""
    index: tuple[slice | int, ...] = (slice(None), *cast(NeuronAttribution, problem.request).neuron.index)
    neuron = replace(problem, target=ResolvedTarget(problem.module, lambda output: output[index], is_neuron=True))
    at_module = replace(problem, layer=problem.module)
    points, together = path_points(problem), steps_per_pass(problem)
    to_module = run_passes(at_module, points, differentiate=True, points_per_pass=together)
    to_input = run_passes(neuron, points, differentiate=True, points_per_pass=together)
    for target_pass, neuron_pass in zip(to_module, to_input):
        neuron_pass.gradients = {
            name: expand_rows(_module_gradient(target_pass)[index].double(), gradient) * gradient.double()
            for name, gradient in neuron_pass.gradients.items()
        }
        yield neuron_pass


def _module_gradient(recorded: Pass) -> Float[Tensor, "batch *features"]:
    """Returns the target's gradient at the output of the neuron's module."""
    gradients = recorded.layer[0].at(Point.GRAD_OUTPUT) if recorded.layer else {}
    if not gradients:
        raise MissingObservation("no gradient reached the neuron's module")
    return next(iter(gradients.values()))


# References.


Steps: TypeAlias = Callable[[Pass], Values]
"""Returns the tensors of a pass that are summed over the steps of a path, ``[steps, batch, ...]`` each."""


def _integrals(problem: AttributionProblem, read: Steps) -> Fold[tuple[Values, Values]]:
    """Returns ``sum over k of w_k * steps[k]`` and the same sum of magnitudes, by name, of as many passes as have the
    steps of the path."""
    weights = torch.from_numpy(_rule(problem).weights)
    sums: Values = {}
    sizes: Values = {}
    seen = 0
    while seen < len(weights):
        if (recorded := (yield)) is None:
            raise MissingObservation(f"{seen} of {len(weights)} steps ran")
        by_name = read(recorded)
        own = weights[seen : seen + len(next(iter(by_name.values())))]
        if (seen and by_name.keys() != sums.keys()) or any(len(steps) != len(own) for steps in by_name.values()):
            raise MissingObservation("not every pass showed the same tensors")
        for name, steps in by_name.items():
            sums[name] = torch.tensordot(own, steps, dims=1) + sums.get(name, 0)
            sizes[name] = torch.tensordot(own, steps.abs(), dims=1) + sizes.get(name, 0)
        seen += len(own)
    return sums, sizes


def _gradients_at_layer(problem: AttributionProblem, call: int) -> Steps:
    return lambda recorded: Evidence(problem, [recorded], call).steps(Point.GRAD_OUTPUT)


def integrated_gradients(problem: AttributionProblem, call: int) -> Fold[Reference]:
    """Returns ``(x - x0) * sum over k of w_k * df/dx at alpha_k``; without the factor, if the request says so.

    Sundararajan et al. 2017, arXiv:1703.01365. For `NeuronConductance` the gradients are ``df/dneuron * dneuron/dx``:
    Dhamdhere et al. 2018, arXiv:1805.12233.
    """

    def gradients(recorded: Pass) -> Values:
        found = Evidence(problem, [recorded])
        return {name: found.gradients(name).unflatten(0, (-1, problem.rows)) for name in problem.explained}

    sums, sizes = yield from _integrals(problem, gradients)
    values, terms = {}, {}
    for name in problem.explained:
        span = host(problem.inputs[name]) - host(problem.baselines[name])
        factor = span if getattr(problem.request, "multiply_by_inputs", True) else torch.ones_like(span)
        values[name], terms[name] = sums[name] * factor, sizes[name] * factor.abs()
    return Reference(values, terms)


def internal_influence(problem: AttributionProblem, call: int) -> Fold[Reference]:
    """Returns ``sum over k of w_k * df/da at alpha_k``. Leino et al. 2018, arXiv:1802.03788."""
    return Reference(*(yield from _integrals(problem, _gradients_at_layer(problem, call))))


def layer_conductance(problem: AttributionProblem, call: int) -> Fold[Reference]:
    """Returns ``sum over k of df/da at point k * (a at point k + 1 - a at point k)``; a repeated point adds 0.

    Shrikumar et al. 2018, arXiv:1807.09946.
    """
    values: Values = {}
    changes: Values = {}
    ends: Values = {}
    last: dict[str, tuple[Tensor, Tensor]] = {}
    while (recorded := (yield)) is not None:
        found = Evidence(problem, [recorded], call)
        outputs, gradients = found.steps(Point.OUTPUT), found.steps(Point.GRAD_OUTPUT)
        if last and last.keys() != outputs.keys():
            raise MissingObservation(f"the layer {problem.layer!r} did not show the same tensors in every pass")
        for name, output in outputs.items():
            gradient = gradients[name]
            if name in last:
                output, gradient = (torch.cat(pair) for pair in zip(last[name], (output, gradient)))
            last[name] = output[-1:], gradient[-1:]
            contributions = gradient[:-1] * output.diff(dim=0)
            largest = (gradient * output).abs().amax(dim=0)
            values[name] = contributions.sum(dim=0) + values.get(name, 0)
            changes[name] = contributions.abs().sum(dim=0) + changes.get(name, 0)
            ends[name] = torch.maximum(largest, ends.get(name, largest))
    if not values:
        raise MissingObservation("no pass was run")
    # The rounding error of a sum of differences is that of its first and last operand.
    return Reference(values, {name: changes[name] + ends[name] for name in values})


def layer_integrated_gradients(problem: AttributionProblem, call: int) -> Fold[Reference]:
    """Returns ``(a(x) - a(x0)) * sum over k of w_k * df/da at a(x0) + alpha_k * (a(x) - a(x0))``.

    The layer's output is replaced by these points, and everything else is computed from ``x``. The steps of one call
    follow those of another; of several layers that go together, all passes of one follow those of another.
    Sundararajan et al. 2017, arXiv:1703.01365; Captum, LayerIntegratedGradients: https://captum.ai/api/layer.html.
    """
    if not problem.further_layers:
        return (yield from _between_ends(problem, call))
    values: Values = {}
    terms: Values = {}
    for part in single_layers(problem):
        reference = yield from _between_ends(part, 0)
        values |= reference.values
        terms |= reference.terms
    return Reference(values, terms)


def _between_ends(problem: AttributionProblem, call: int) -> Fold[Reference]:
    """Folds a pass at the input, one at the baseline, and the steps of the layer's output between the two. Returns the
    reference of one call."""
    ends: list[Values] = []
    outputs: list[Mapping[str, Tensor]] = []
    while len(ends) < 2:
        if (recorded := (yield)) is None:
            raise MissingObservation("no pass was run")
        ends.append(Evidence(problem, [recorded], call).layer(Point.OUTPUT))
        outputs.append(recorded.layer[call].at(Point.OUTPUT))
    at_x, at_baseline = ends
    alphas = iter(_alphas(problem))

    def gradients(recorded: Pass) -> Values:
        found = Evidence(problem, [recorded], call).steps(Point.GRAD_OUTPUT)
        chunk = list(islice(alphas, len(next(iter(found.values())))))
        for path, visited in recorded.layer[call].at(Point.OUTPUT).items():
            _require_between(outputs[0].get(path), outputs[1].get(path), chunk, visited)
        return found

    for _ in range(call):
        yield from _integrals(problem, lambda recorded: {"": torch.zeros(recorded.rows // problem.rows).double()})
    sums, sizes = yield from _integrals(problem, gradients)
    return Reference(
        {name: (end - at_baseline[name]) * sums[name] for name, end in at_x.items()},
        {name: (end.abs() + at_baseline[name].abs()) * sizes[name] for name, end in at_x.items()},
    )


def _require_between(at_x: Tensor | None, at_baseline: Tensor | None, alphas: Sequence[float], visited: Tensor) -> None:
    """Raises `MissingObservation` where ``visited`` are not the steps at ``alphas`` on the way to ``at_x``."""
    if at_x is None or at_baseline is None or at_x.shape != at_baseline.shape:
        raise MissingObservation("the layer returns other tensors for the baseline than for the input")
    if not visited.is_floating_point():
        return
    expected = _interpolated(at_baseline, at_x, alphas)
    if not close(expected.reshape(-1), visited.reshape(-1), VISITED_POINTS):
        raise MissingObservation("the layer's output was not replaced by the steps of the path")
