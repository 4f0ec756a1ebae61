"""ReLUs that are recognised by what they do to the values that flow through them, whatever they are called.

``h.clamp(min=0)``, ``maximum(h, 0)``, ``where(h > 0, h, 0)``, ``h * (h > 0)``, ``(h + h.abs()) / 2``, a function of the
model's own: each returns, or passes on, a tensor that is max(h, 0) of an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cutaway.engine.hooks.capture_spec import CapturedValues, CaptureSpec
from cutaway.engine.hooks.recording import RecordedCall
from cutaway.engine.passes.pass_recorder import AttributionProblem
from cutaway.engine.passes.reference_inputs import host
from cutaway.engine.references.observation import observe_forward, operator_of
from cutaway.engine.runtime.numerics import VISITED_POINTS, close
from cutaway.requests import Point

_FEWEST = 2
"""How many elements must be negative, and how many positive: fewer may be 0 by chance."""

_ELEMENTS = 4096

RELU_OPERATORS = ("relu", "relu_")
"""Operators that are ReLUs by their names."""


class _FirstElements(CaptureSpec):
    """Captures the first elements of each tensor, which are enough to know it again."""

    def apply(self, tensor: Tensor, result_field: str) -> CapturedValues:
        """Returns at most `_ELEMENTS` of them, on one axis."""
        return CapturedValues(tensor.reshape(-1)[:_ELEMENTS].clone())


@dataclass(frozen=True)
class _Seen:
    """A floating tensor of one operator or module, and where it was first seen."""

    place: str
    values: Tensor

    @property
    def has_both_signs(self) -> bool:
        return min(int((self.values > 0).sum()), int((self.values < 0).sum())) >= _FEWEST

    @property
    def is_rectified(self) -> bool:
        return not bool((self.values < 0).any()) and int((self.values == 0).sum()) >= _FEWEST


def hidden_rectifiers(problem: AttributionProblem) -> list[str]:
    """Returns the addresses of the operators at which a rectified tensor is first seen that no ``nn.ReLU`` returned."""
    key = (hidden_rectifiers, problem.model.kind_of(problem.inputs))
    return problem.model.remembered(key, lambda: _places(problem))


def _places(problem: AttributionProblem) -> list[str]:
    relus = [name for name, module in problem.model.tree.modules.items() if isinstance(module, nn.ReLU)]
    both = dict.fromkeys((Point.INPUT, Point.OUTPUT), _FirstElements())
    calls = observe_forward(problem, {**dict.fromkeys(relus, both), "**:*#*": both})
    seen = list(_tensors(calls))
    known = [each.values for each in seen if each.place in relus or operator_of(each.place) in RELU_OPERATORS]
    signed: dict[torch.Size, list[Tensor]] = {}
    for each in seen:
        if each.has_both_signs:
            signed.setdefault(each.values.shape, []).append(each.values.clamp(min=0))
    places = []
    for each in seen:
        if each.is_rectified and not _is_any(each.values, known):
            known.append(each.values)  # what takes it next is no rectifier
            if _is_any(each.values, signed.get(each.values.shape, [])):
                places.append(each.place)
    return places


def _tensors(calls: Mapping[str, Sequence[RecordedCall]]) -> Iterator[_Seen]:
    for place, recorded in calls.items():
        for call in recorded:
            for point in (Point.INPUT, Point.OUTPUT):
                for tensor in call.at(point).values():
                    if tensor.is_floating_point() and tensor.ndim:
                        yield _Seen(place, host(tensor))


def _is_any(values: Tensor, others: Sequence[Tensor]) -> bool:
    size = float(values.sum())
    return any(
        other.shape == values.shape
        and abs(float(other.sum()) - size) <= 1e-4 * abs(size)
        and close(values.float(), other.float(), VISITED_POINTS)
        for other in others
    )
