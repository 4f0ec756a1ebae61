"""References for guided backpropagation and deconvolution, which replace the derivative of ReLU.

Captum overrides ``nn.ReLU`` modules and knows no other ReLU. The passes here override functional ReLUs too, so that a
model that calls them shows what the method should return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, cast

import torch
from jaxtyping import Float64
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional

from cutaway.contract.requests import Edit, LayerAttribution, NeuronAttribution, Point, Saliency
from cutaway.contract.results import Cause
from cutaway.engine.hooks.capture_spec import CapturedValues, CaptureSpec, SpecsBySite, watching
from cutaway.engine.hooks.edits import Override
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.recording import RecordedCall
from cutaway.engine.hooks.tokens import RowTexts
from cutaway.engine.model.inspected_model import gradients
from cutaway.engine.passes.findings import Finding, retested
from cutaway.engine.passes.pass_recorder import (
    AttributionProblem,
    Changes,
    Pass,
    PassRecorder,
    cached_per_problem,
    run_passes,
)
from cutaway.engine.passes.reference_inputs import Evidence, MissingObservation, Reference, exact, host, input_point
from cutaway.engine.references.observation import observe_forward, operator_of, outermost, reused_neuron_module
from cutaway.engine.runtime.numerics import VISITED_POINTS, close

# References for methods that take one gradient, at the input or at a layer.


def saliency(evidence: Evidence) -> Reference:
    """Returns ``|df/dx|``, or ``df/dx`` if the request asks for signs. Simonyan et al. 2013, arXiv:1312.6034."""
    absolute = cast(Saliency, evidence.problem.request).absolute
    gradients = evidence.explained_gradients()
    return exact({name: gradient.abs() if absolute else gradient for name, gradient in gradients.items()})


def input_x_gradient(evidence: Evidence) -> Reference:
    """Returns ``x * df/dx``. Shrikumar et al. 2016, arXiv:1605.01713."""
    inputs = evidence.problem.inputs
    return exact({name: host(inputs[name]) * gradient for name, gradient in evidence.explained_gradients().items()})


def layer_activation(evidence: Evidence) -> Reference:
    """Returns ``a``, the layer's output. Captum, LayerActivation: https://captum.ai/api/layer.html."""
    return exact(evidence.layer(Point.OUTPUT))


def layer_gradient_x_activation(evidence: Evidence) -> Reference:
    """Returns ``a * df/da``. Captum, LayerGradientXActivation: https://captum.ai/api/layer.html."""
    gradients = evidence.layer(Point.GRAD_OUTPUT)
    return exact({name: value * gradients[name] for name, value in evidence.layer(Point.OUTPUT).items()})


def layer_grad_cam(evidence: Evidence) -> Reference:
    """Returns ``sum over channels c of a_c * mean over positions of df/da_c``, [batch, 1, *positions].

    Negative values become 0 if the request says so. The reference's ``terms`` are the same sums of magnitudes, which
    bound the rounding errors. Selvaraju et al. 2017, arXiv:1610.02391.
    """
    gradients = evidence.layer(Point.GRAD_OUTPUT)
    relu = getattr(evidence.problem.request, "relu", False)
    values, terms = {}, {}
    for name, value in evidence.layer(Point.OUTPUT).items():
        cam = (_channel_means(gradients[name]) * value).sum(dim=1, keepdim=True)
        values[name] = cam.clamp(min=0) if relu else cam
        terms[name] = (_channel_means(gradients[name].abs()) * value.abs()).sum(dim=1, keepdim=True)
    return Reference(values, terms)


def _channel_means(gradient: Float64[Tensor, "batch channels *positions"]) -> Float64[Tensor, "batch channels *ones"]:
    """Returns the mean over positions, [batch, channels, 1, ...]; a gradient without positions as it is."""
    positions = tuple(range(2, gradient.ndim))
    return gradient.mean(dim=positions, keepdim=True) if positions else gradient


class Rectifiers(NamedTuple):
    """The ReLUs that run in one forward pass, with the number of their calls.

    Attributes:
        modules: by name, the ``nn.ReLU`` modules.
        functions: by operator address, such as ``block2:relu#0``, the calls of a function.
        hidden: addresses of operators where another operation has done what a ReLU does.
    """

    modules: Mapping[str, int]
    functions: Mapping[str, int]
    hidden: Sequence[str]


@cached_per_problem
def rectifiers(problem: AttributionProblem) -> Rectifiers:
    """Returns the ReLUs that run; for a neuron those between the input and the neuron, which its gradient passes."""
    calls, modules = _calls(problem), problem.model.tree.modules
    if isinstance(problem.request, NeuronAttribution):
        calls = _reached_from_neuron(problem, calls)
    return Rectifiers(
        {name: times for name, times in calls.items() if name in modules},
        {name: times for name, times in calls.items() if name not in modules},
        [name for name in hidden_rectifiers(problem) if name not in calls],
    )


_CallCounts: TypeAlias = dict[str, int]
"""The number of calls of each ReLU that runs, by module name or operator address."""


def _calls(problem: AttributionProblem) -> _CallCounts:
    """Returns the calls that the passes of the problem have seen, or else those of a forward pass."""
    if _calls not in problem.cache:
        sites = _sites(problem)
        problem.cache[_calls] = _counts(observe_forward(problem, sites))
    calls: _CallCounts = problem.cache[_calls]
    return calls


def _counts(calls: Mapping[str, Sequence[RecordedCall]]) -> _CallCounts:
    return {name: len(seen) for name, seen in calls.items() if seen}


def _sites(problem: AttributionProblem) -> SpecsBySite:
    modules = [name for name, module in problem.model.tree.modules.items() if isinstance(module, nn.ReLU)]
    functions = {f"**:{function}#*": watching(Point.OUTPUT) for function in RELU_OPERATORS}
    return {**{name: watching() for name in modules}, **functions}


def _reached_from_neuron(problem: AttributionProblem, calls: Mapping[str, int]) -> dict[str, int]:
    """Returns the ``calls`` of those ReLUs that the neuron's gradient reaches on its way to the input."""
    leaves = {name: problem.inputs[name].detach().clone().requires_grad_() for name in problem.explained}
    sites = {name: watching(Point.GRAD_OUTPUT) for name in calls}
    with observing(problem.model.tree, sites) as recording:
        with recording.forward():
            output = problem.read({**problem.inputs, **leaves})
        gradients(problem.target.scalars(output), [*map(get_gradient_edge, leaves.values()), *recording.gradient_roots])
        return {
            name: times
            for name, times in calls.items()
            if any(call.at(Point.GRAD_OUTPUT) for call in recording.calls[name])
        }


def limitation(problem: AttributionProblem) -> Finding | None:
    """Reports functional ReLUs, which Captum does not override, and a neuron's module that is called several times."""
    if finding := reused_neuron_module(problem):
        return finding
    modules, functions, hidden = rectifiers(problem)
    if not (functions or hidden):
        return None
    where = ", ".join([*functions, *hidden][:3])
    if isinstance(problem.request, NeuronAttribution):
        where += ", between the input and the neuron"
    return Finding(
        Cause.FUNCTIONAL_NONLINEARITY,
        f"functional relu at {where}, which Captum differentiates as it is, because it overrides nn.ReLU modules only"
        f"{'' if modules else ' (none ran)'}: build the model with nn.ReLU modules, one for each call",
    )


def vacuous(problem: AttributionProblem) -> Finding | None:
    """Reports a model without ReLUs, for which the method is the plain gradient."""
    if any(rectifiers(problem)):
        return None
    where = " between the input and the neuron" if isinstance(problem.request, NeuronAttribution) else ""
    return Finding(Cause.NOT_MOVED, f"no ReLU ran{where}: with nothing to override, this is the gradient")


# Passes.


def guided_passes(problem: AttributionProblem) -> Sequence[Pass]:
    """Runs a pass in which each ReLU passes on only the positive part of ``derivative * incoming gradient``."""
    return _overridden(problem, _guided)


def deconvolution_passes(problem: AttributionProblem) -> Sequence[Pass]:
    """Runs a pass in which each ReLU passes on the positive part of the incoming gradient, whatever its input was."""
    return _overridden(problem, _deconvolved)


def guided_grad_cam_passes(problem: AttributionProblem) -> Sequence[Pass]:
    """Runs an unchanged pass, for Grad-CAM, and a guided one."""
    unchanged = run_passes(problem, input_point(problem), differentiate=True, to_inputs=False)
    return [*unchanged, *guided_passes(problem)]


def _overridden(problem: AttributionProblem, override: Callable[[int], Iterator[Edit]]) -> Sequence[Pass]:
    """Overrides the ReLUs that ran for earlier inputs of this kind; if others run for these, runs the pass again."""
    if isinstance(problem.request, NeuronAttribution):
        modules, functions, _ = rectifiers(problem)
        return _override_calls(problem, {**modules, **functions}, override)[0]
    earlier = problem.model.remembered((_overridden, problem.model.kind_of(problem.inputs)), dict[str, int])
    passes, calls = _override_calls(problem, earlier, override)
    if calls != earlier:
        earlier.clear()
        earlier.update(calls)
        passes, _ = _override_calls(problem, calls, override)
    problem.cache[_calls] = calls
    return passes


def _override_calls(
    problem: AttributionProblem, calls: _CallCounts, override: Callable[[int], Iterator[Edit]]
) -> tuple[Sequence[Pass], _CallCounts]:
    """Runs a pass with ``calls`` overridden; returns the calls that ran, too."""
    edits = {name: [(call, edit) for call in range(times) for edit in override(call)] for name, times in calls.items()}
    sites = _sites(problem)
    recorder = PassRecorder(problem, edits, sites=sites)
    try:
        (point,) = input_point(problem)
        recorder.visit(point, differentiate=True)
        seen = {
            name: calls for name, calls in recorder.recording.calls.items() if name in sites or name != problem.layer
        }
        return recorder.passes, _counts(outermost(seen, sites))
    finally:
        recorder.release()


def _guided(call: int) -> Iterator[Edit]:
    yield Override(at=Point.GRAD_INPUT, call=call, change=_positive)


def _deconvolved(call: int) -> Iterator[Edit]:
    incoming: list[Tensor] = []

    def keep(gradient: Tensor) -> Tensor:
        incoming[:] = [gradient]
        return gradient

    yield Override(at=Point.GRAD_OUTPUT, call=call, change=keep)
    yield Override(at=Point.GRAD_INPUT, call=call, change=lambda _: _positive(incoming[0]))


def _positive(gradient: Tensor) -> Tensor:
    return gradient.clamp(min=0)


# References.


def input_gradient(evidence: Evidence) -> Reference:
    """Returns ``df/dx`` of the last pass.

    Guided backpropagation: Springenberg et al. 2015, arXiv:1412.6806; deconvolution: Zeiler and Fergus 2013,
    arXiv:1311.2901.
    """
    last = Evidence(evidence.problem, evidence.passes[-1:])
    return exact({name: last.gradients(name) for name in evidence.problem.explained})


def guided_grad_cam(evidence: Evidence) -> Reference:
    """Returns ``guided df/dx * max(0, Grad-CAM of the layer)``, the latter scaled to the input by nearest neighbor.

    Selvaraju et al. 2017, arXiv:1610.02391.

    Raises:
        MissingObservation: the layer's map has other axes than the input, or no positions.
    """
    unchanged = Evidence(evidence.problem, evidence.passes[:1], evidence.call)
    cam, terms = (next(iter(values.values())) for values in layer_grad_cam(unchanged)[:2])
    guided = input_gradient(evidence).values
    return Reference(
        {name: gradient * _scaled(cam.clamp(min=0), gradient) for name, gradient in guided.items()},
        {name: gradient.abs() * _scaled(terms, gradient) for name, gradient in guided.items()},
    )


def _scaled(
    cam: Float64[Tensor, "batch 1 *positions"], like: Float64[Tensor, "batch channels *pixels"]
) -> Float64[Tensor, "batch 1 *pixels"]:
    if cam.ndim != like.ndim or cam.ndim < 3:
        raise MissingObservation("the layer's map cannot be scaled to the input")
    return functional.interpolate(cam, like.shape[2:], mode="nearest")


_Calls: TypeAlias = Mapping[str, Sequence[RecordedCall]]

_FEWEST = 2
"""How many elements must be negative, and how many positive: fewer may be 0 by chance."""

_ELEMENTS = 4096

RELU_OPERATORS = ("relu", "relu_")
"""Operators that are ReLUs by their names."""


class _FirstElements(CaptureSpec):
    """Captures the first elements of each tensor, which are enough to know it again."""

    def apply(
        self, tensor: Tensor, result_field: str, row_axis: int | None, texts: RowTexts | None = None
    ) -> CapturedValues:
        """Returns at most `_ELEMENTS` of them, on one axis."""
        return CapturedValues(tensor.reshape(-1)[:_ELEMENTS].clone())


class TensorSite(NamedTuple):
    """A site at which a tensor was recorded: a module or an operator's address, and a point of it."""

    name: str
    point: Point


@dataclass(frozen=True)
class _Seen:
    """A floating tensor of one operator or module, and where it was first seen."""

    place: TensorSite
    values: Tensor

    @property
    def has_both_signs(self) -> bool:
        return min(int((self.values > 0).sum()), int((self.values < 0).sum())) >= _FEWEST

    @property
    def is_rectified(self) -> bool:
        return not bool((self.values < 0).any()) and int((self.values == 0).sum()) >= _FEWEST


def hidden_rectifiers(problem: AttributionProblem) -> list[str]:
    """Returns where a rectified tensor is first seen that no ``nn.ReLU`` returned: the addresses of operators.

    For a layer's attribution these lie behind the layer. For a neuron's they lie between the inputs and the neuron,
    whose module is a place too.
    """
    is_neuron = isinstance(problem.request, NeuronAttribution)
    places = retested(problem, _places, problem.module if is_neuron else "")
    if is_neuron:
        places = [place for place in places if _reaches_neuron(problem, place)]
    elif isinstance(problem.request, LayerAttribution):
        places = _behind_layer(problem, places)
    return list(dict.fromkeys(place.name for place in places))


def _places(problem: AttributionProblem) -> list[TensorSite]:
    """Runs a forward pass, and returns where a tensor first appears that is max(h, 0) of another one, but of no known
    ReLU."""
    relus = [name for name, module in problem.model.tree.modules.items() if isinstance(module, nn.ReLU)]
    both = dict.fromkeys((Point.INPUT, Point.OUTPUT), _FirstElements())
    seen = list(_tensors(observe_forward(problem, {**dict.fromkeys(relus, both), "**:*#*": both})))
    if isinstance(problem.request, NeuronAttribution) and problem.module not in relus:
        seen += _tensors(observe_forward(problem, {problem.module: {Point.OUTPUT: _FirstElements()}}))
    named = [
        recorded.values
        for recorded in seen
        if recorded.place.name in relus or operator_of(recorded.place.name) in RELU_OPERATORS
    ]
    signed: dict[torch.Size, list[Tensor]] = {}
    for recorded in seen:
        if recorded.has_both_signs:
            signed.setdefault(recorded.values.shape, []).append(recorded.values.clamp(min=0))
    places, others = [], list[Tensor]()
    for recorded in seen:
        is_first = recorded.place.name == problem.module or not _is_any(recorded.values, others)
        if recorded.is_rectified and is_first and not _is_any(recorded.values, named):
            others.append(recorded.values)  # what takes it next is no rectifier
            if _is_any(recorded.values, signed.get(recorded.values.shape, [])):
                places.append(recorded.place)
    return places


def _tensors(calls: Mapping[str, Sequence[RecordedCall]]) -> Iterator[_Seen]:
    for name, recorded in calls.items():
        for call in recorded:
            for point in (Point.INPUT, Point.OUTPUT):
                for tensor in call.at(point).values():
                    if tensor.is_floating_point() and tensor.ndim:
                        yield _Seen(TensorSite(name, point), host(tensor))


def _moved(tensor: Tensor) -> Tensor:
    """Returns other values; those that are no floating numbers stay."""
    return tensor * 0.5 + 1 if tensor.is_floating_point() else tensor


def _reaches_neuron(problem: AttributionProblem, place: TensorSite) -> bool:
    """Returns whether the neuron's module returns other values when those at ``place`` are changed."""
    edits = {place.name: [(0, Override(at=place.point, change=_moved))]}
    plain, moved = (_run(problem, {}, changes)[1] for changes in ({}, edits))
    return not torch.equal(plain, moved)


def _behind_layer(problem: AttributionProblem, places: Sequence[TensorSite]) -> list[TensorSite]:
    """Returns those of ``places`` whose values change with the layer's output."""
    sites = {place.name: {place.point: _FirstElements()} for place in places}
    edits = {problem.layer: [(0, Override(change=_moved))]}
    plain, moved = (_run(problem, sites, changes)[0] for changes in ({}, edits)) if places else ({}, {})
    return [place for place in places if not _same_calls(plain[place.name], moved[place.name], place.point)]


def _same_calls(one: Sequence[RecordedCall], other: Sequence[RecordedCall], point: Point) -> bool:
    pairs = [(a.at(point), b.at(point)) for a, b in zip(one, other)]
    return all(a.keys() == b.keys() and all(torch.equal(a[path], b[path]) for path in a) for a, b in pairs)


def _run(problem: AttributionProblem, sites: SpecsBySite, edits: Changes) -> tuple[_Calls, Tensor]:
    """Runs a forward pass, and returns the calls at ``sites`` and what the target is read from."""
    model = problem.model
    with torch.no_grad(), model.kept_rng_state(), observing(model.tree, sites, edits) as seen, seen.forward():
        return seen.calls, problem.read(problem.inputs)


def _is_any(values: Tensor, others: Sequence[Tensor]) -> bool:
    size = float(values.sum())
    return any(
        other.shape == values.shape
        and abs(float(other.sum()) - size) <= 1e-4 * abs(size)
        and close(values.float(), other.float(), VISITED_POINTS)
        for other in others
    )
