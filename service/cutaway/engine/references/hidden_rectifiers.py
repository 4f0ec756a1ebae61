"""Finds ReLUs by what they do to the values that flow through them, whatever they are called.

``h.clamp(min=0)``, ``maximum(h, 0)``, ``where(h > 0, h, 0)``, ``h * (h > 0)``, ``(h + h.abs()) / 2``, a function of the
model's own: each returns, or passes on, a tensor that is max(h, 0) of an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from cutaway.contract.requests import LayerAttribution, NeuronAttribution, Point
from cutaway.engine.hooks.capture_spec import CapturedValues, CaptureSpec, SpecsBySite
from cutaway.engine.hooks.edits import Override
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.recording import RecordedCall
from cutaway.engine.hooks.tokens import RowTexts
from cutaway.engine.passes.findings import retested
from cutaway.engine.passes.pass_recorder import AttributionProblem, Changes
from cutaway.engine.passes.reference_inputs import host
from cutaway.engine.references.observation import observe_forward, operator_of
from cutaway.engine.runtime.numerics import VISITED_POINTS, close

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
