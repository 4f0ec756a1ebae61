"""References for methods that integrate gradients along a path from the baseline to the input.

Notation: ``x`` is the input, ``x0`` the baseline, ``a`` the layer's output, ``f`` the target or the neuron; ``alpha_k``
and ``w_k`` are the points and weights of the quadrature.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, cast, overload

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from cutaway.contract.requests import NeuronAttribution, PathAttribution, Point, Replace
from cutaway.engine.hooks.hook_site import NumberedEdit
from cutaway.engine.hooks.recording import RecordedCall
from cutaway.engine.passes.pass_recorder import AttributionProblem, Pass, Values, cached_per_problem, run_passes
from cutaway.engine.passes.reference_inputs import Evidence, MissingObservation, Reference, host, input_point, rule
from cutaway.engine.passes.targets import ResolvedTarget
from cutaway.engine.references.observation import expand_rows, target_values
from cutaway.engine.runtime.numerics import to_numpy

ELEMENTS_PER_PASS = 1 << 19
"""Captum runs a path in passes of about this many input elements, so that memory does not grow with the steps."""

MIN_ROWS, MAX_ROWS = 16, 512
"""The bounds of such a pass in rows: fewer rows only take more time, more rows save none."""

_POINTS_AT_ONCE = 1 << 22
"""The elements of all points that are in memory at one time."""

_ELEMENTS_PER_ID = 256
"""The count of an integer input element, because an embedding follows it."""


def _alphas(problem: AttributionProblem, further_points: int = 0) -> list[float]:
    request = cast(PathAttribution, problem.request)
    alphas: list[float] = rule(request.quadrature, request.n_steps + further_points).alphas.tolist()
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


@cached_per_problem
def path_points(problem: AttributionProblem) -> Sequence[Values]:
    """Returns ``x0 + alpha_k * (x - x0)`` for each point of the quadrature."""
    return _Points(problem, _alphas(problem))


@cached_per_problem
def conductance_points(problem: AttributionProblem) -> Sequence[Values]:
    """Returns the points of `LayerConductance`, one more than there are steps.

    Captum runs them in several passes, each of which begins with the last point of the pass before.
    """
    alphas = _alphas(problem, further_points=1)
    steps = conductance_points_per_pass(problem) - 1
    passes = [alphas[first : first + steps + 1] for first in range(0, len(alphas) - 1, steps)]
    return _Points(problem, [alpha for chunk in passes for alpha in chunk])


def layer_path_points(problem: AttributionProblem) -> list[Values]:
    """Returns the input, the baseline, and the input again for each step, at which the layer's output is replaced."""
    x = input_point(problem)
    return [*x, dict(problem.baselines), *x * cast(PathAttribution, problem.request).n_steps]


class _Points(Sequence[Values]):
    """The points of a path, computed some at a time: together they may take more memory than there is."""

    def __init__(self, problem: AttributionProblem, alphas: Sequence[float]) -> None:
        self._problem, self._alphas = problem, alphas
        elements = sum(problem.inputs[name].numel() for name in problem.explained)
        self._together = max(1, _POINTS_AT_ONCE // max(1, elements))
        self._first, self._known = 0, list[Values]()

    def __len__(self) -> int:
        return len(self._alphas)

    @overload
    def __getitem__(self, index: int) -> Values: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Values]: ...

    def __getitem__(self, index: int | slice) -> Values | Sequence[Values]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        if not self._first <= number < self._first + len(self._known):
            self._first = number - number % self._together
            self._known = self._computed(self._alphas[self._first : self._first + self._together])
        return self._known[number - self._first]

    def _computed(self, alphas: Sequence[float]) -> list[Values]:
        problem = self._problem
        tensors = [_interpolated(problem.baselines[name], problem.inputs[name], alphas) for name in problem.explained]
        return [dict(zip(problem.explained, steps)) for steps in zip(*tensors)]


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


def layer_path_passes(problem: AttributionProblem) -> Sequence[Pass]:
    """Runs a pass at the input and one at the baseline; then, for each call of the layer, the steps between its two
    outputs. Of several layers, runs all this for each."""
    if problem.further_layers:
        return [recorded for part in single_layers(problem) for recorded in _joint_path_passes(problem, part)]
    x, baseline, *_ = layer_path_points(problem)
    ends = run_passes(problem, [x, baseline], differentiate=False)
    passes = list(ends)
    alphas = _alphas(problem)
    together = steps_per_pass(problem)
    for number, (at_x, at_baseline) in enumerate(zip(ends[0].layer, ends[1].layer)):
        for first in range(0, len(alphas), together):
            chunk = alphas[first : first + together]
            edits = {problem.layer: list(enumerate(_layer_edits(number, at_baseline, at_x, chunk)))}
            passes += run_passes(problem, [x] * len(chunk), differentiate=True, edits=edits, points_per_pass=len(chunk))
    return passes


def single_layers(problem: AttributionProblem) -> list[AttributionProblem]:
    """Returns ``problem`` for each of its layers by itself."""
    return [replace(problem, layer=name, further_layers=()) for name in problem.layers]


def _joint_path_passes(problem: AttributionProblem, part: AttributionProblem) -> Sequence[Pass]:
    """Runs the ends of the layer of ``part``, and the steps on which all layers of ``problem`` go together."""
    x, baseline, *_ = layer_path_points(problem)
    passes = list(run_passes(part, [x, baseline], differentiate=False))
    ends = _layer_ends(problem, baseline)
    for alpha in _alphas(problem):
        passes += run_passes(part, [x], differentiate=True, edits=_edits_at(ends, alpha))
    return passes


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
    held = run_passes(problem, input_point(problem), differentiate=False, edits=edits)
    return target_values(Evidence(problem, held))[0]


def neuron_conductance_passes(problem: AttributionProblem) -> Sequence[Pass]:
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
    return to_input


def _module_gradient(recorded: Pass) -> Float[Tensor, "batch *features"]:
    """Returns the target's gradient at the output of the neuron's module."""
    gradients = recorded.layer[0].at(Point.GRAD_OUTPUT) if recorded.layer else {}
    if not gradients:
        raise MissingObservation("no gradient reached the neuron's module")
    return next(iter(gradients.values()))


# References.


def _integral(problem: AttributionProblem, steps: Float64[Tensor, "steps *axes"]) -> Float64[Tensor, "*axes"]:
    """Returns ``sum over k of w_k * steps[k]``."""
    request = cast(PathAttribution, problem.request)
    weights = torch.from_numpy(rule(request.quadrature, request.n_steps).weights)
    integral: Tensor = torch.tensordot(weights, steps, dims=1)
    return integral


def integrated_gradients(evidence: Evidence) -> Reference:
    """Returns ``(x - x0) * sum over k of w_k * df/dx at alpha_k``; without the factor, if the request says so.

    Sundararajan et al. 2017, arXiv:1703.01365. For `NeuronConductance` the gradients are ``df/dneuron * dneuron/dx``:
    Dhamdhere et al. 2018, arXiv:1805.12233.
    """
    problem = evidence.problem
    values, terms = {}, {}
    for name in problem.explained:
        span = host(problem.inputs[name]) - host(problem.baselines[name])
        factor = span if getattr(problem.request, "multiply_by_inputs", True) else torch.ones_like(span)
        integral, magnitude = _integrals(evidence, name)
        values[name], terms[name] = integral * factor, magnitude * factor.abs()
    return Reference(values, terms)


def _integrals(evidence: Evidence, name: str) -> tuple[Tensor, Tensor]:
    """Returns the integrals of the gradients at input ``name`` and of their magnitudes, [batch, ...] each, summed pass
    by pass."""
    problem, integral, magnitude, step = evidence.problem, torch.zeros(()), torch.zeros(()), 0
    request = cast(PathAttribution, problem.request)
    weights = torch.from_numpy(rule(request.quadrature, request.n_steps).weights)
    for gradients in evidence.gradients_by_pass(name):
        steps = gradients.double().reshape(-1, problem.rows, *gradients.shape[1:])
        own = weights[step : step + len(steps)]
        integral = integral + torch.tensordot(own, steps, dims=1)
        magnitude = magnitude + torch.tensordot(own, steps.abs(), dims=1)
        step += len(steps)
    if step != len(weights):
        raise MissingObservation(f"not every pass brought a gradient to the input {name!r}")
    return integral, magnitude


def internal_influence(evidence: Evidence) -> Reference:
    """Returns ``sum over k of w_k * df/da at alpha_k``. Leino et al. 2018, arXiv:1802.03788."""
    steps = evidence.steps(Point.GRAD_OUTPUT)
    return Reference(
        {name: _integral(evidence.problem, tensor) for name, tensor in steps.items()},
        {name: _integral(evidence.problem, tensor.abs()) for name, tensor in steps.items()},
    )


def layer_conductance(evidence: Evidence) -> Reference:
    """Returns ``sum over k of df/da at point k * (a at point k + 1 - a at point k)``; a repeated point adds 0.

    Shrikumar et al. 2018, arXiv:1807.09946.
    """
    gradients = evidence.steps(Point.GRAD_OUTPUT)
    values, terms = {}, {}
    for name, outputs in evidence.steps(Point.OUTPUT).items():
        contributions = gradients[name][:-1] * outputs.diff(dim=0)
        values[name] = contributions.sum(dim=0)
        # The rounding error of a sum of differences is that of its first and last operand.
        terms[name] = contributions.abs().sum(dim=0) + (gradients[name] * outputs).abs().amax(dim=0)
    return Reference(values, terms)


def layer_integrated_gradients(evidence: Evidence) -> Reference:
    """Returns ``(a(x) - a(x0)) * sum over k of w_k * df/da at a(x0) + alpha_k * (a(x) - a(x0))``.

    The layer's output is replaced by these points, and everything else is computed from ``x``. Sundararajan et al.
    2017, arXiv:1703.01365; Captum, LayerIntegratedGradients: https://captum.ai/api/layer.html.
    """
    if evidence.problem.further_layers:
        return _of_each_layer(evidence)
    at_x, at_baseline = (Evidence(evidence.problem, evidence.passes[k : k + 1], evidence.call) for k in (0, 1))
    passes = (len(evidence.passes) - 2) // len(evidence.passes[0].layer)  # as many for each call
    first = 2 + evidence.call * passes
    between = Evidence(evidence.problem, evidence.passes[first : first + passes], evidence.call)
    starts, gradients = at_baseline.layer(Point.OUTPUT), between.steps(Point.GRAD_OUTPUT)
    values, terms = {}, {}
    for name, end in at_x.layer(Point.OUTPUT).items():
        values[name] = (end - starts[name]) * _integral(evidence.problem, gradients[name])
        terms[name] = (end.abs() + starts[name].abs()) * _integral(evidence.problem, gradients[name].abs())
    return Reference(values, terms)


def _of_each_layer(evidence: Evidence) -> Reference:
    """Returns the references of several layers that go together: the passes of each follow those of the one before."""
    parts = single_layers(evidence.problem)
    count = len(evidence.passes) // len(parts)
    references = [
        layer_integrated_gradients(Evidence(part, evidence.passes[number * count : (number + 1) * count]))
        for number, part in enumerate(parts)
    ]
    values, terms = (
        {name: tensor for side in sides for name, tensor in side.items()}
        for sides in zip(*((one.values, one.terms) for one in references))
    )
    return Reference(values, terms)
