"""What the passes showed, as the reply has it."""

from __future__ import annotations

from collections.abc import Sequence

from cutaway.engine.arrays import to_numpy
from cutaway.engine.seen import Call
from cutaway.engine.subject import Outputs, Subject
from cutaway.engine.wishes import Wish
from cutaway.requests import POINTS, Point
from cutaway.results import CapturedCall, ClassPrediction, ModuleCapture
from cutaway.tensors import Array


def classes(subject: Subject, outputs: Outputs) -> tuple[ClassPrediction, ...]:
    """Each example's predicted class, for a model with classes."""
    logits = next(iter(outputs.values()), None)
    if logits is None or not subject.labels or logits.ndim != 2:
        return ()
    probabilities, indices = logits.double().softmax(dim=1).max(dim=1)
    return tuple(
        ClassPrediction(index, subject.labels[index] if index < len(subject.labels) else "", probability)
        for index, probability in zip(indices.tolist(), probabilities.tolist())
    )


def captures(wanted: dict[str, dict[Point, Wish]], calls: dict[str, list[Call]]) -> dict[str, ModuleCapture]:
    """What was wanted, by module name or operator address, without what never ran."""
    return {name: _capture(calls[name], wishes) for name, wishes in wanted.items() if calls[name]}


def _capture(calls: Sequence[Call], wishes: dict[Point, Wish]) -> ModuleCapture:
    return ModuleCapture(tuple(_call(call, wishes) for call in named(calls, wishes)))


def named(calls: Sequence[Call], wishes: dict[Point, Wish]) -> list[Call]:
    """The calls that are wanted; all points of a place agree on which."""
    which = next(iter(wishes.values())).call
    return [call for call in calls if which in (None, call.number)]


def _call(call: Call, wishes: dict[Point, Wish]) -> CapturedCall:
    leaves: dict[Point, dict[str, Array]] = {}
    positions: dict[Point, dict[str, Array]] = {}
    for point in POINTS:
        if point not in wishes:
            continue
        for path, part in call.parts(point).items():
            leaves.setdefault(point, {})[path] = to_numpy(part.values)
            if part.positions is not None:
                positions.setdefault(point, {})[path] = to_numpy(part.positions)
    return CapturedCall(leaves, positions)
