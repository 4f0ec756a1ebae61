"""What the passes showed, as the reply has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from cutaway.engine.arrays import to_numpy
from cutaway.engine.hooks import Call, Seen
from cutaway.engine.plan import Plan
from cutaway.engine.subject import Outputs, Subject
from cutaway.engine.witness import Values
from cutaway.requests import Point
from cutaway.results import CapturedCall, ClassPrediction, ModuleCapture, Warning, WarningCode
from cutaway.tensors import Array


def classes(subject: Subject, outputs: Outputs) -> tuple[ClassPrediction, ...]:
    """Each example's predicted class, for a model with classes."""
    logits = next(iter(outputs.values()))
    if not subject.labels or logits.ndim != 2:
        return ()
    probabilities, indices = logits.double().softmax(dim=1).max(dim=1)
    return tuple(
        ClassPrediction(index, subject.labels[index] if index < len(subject.labels) else "", probability)
        for index, probability in zip(indices.tolist(), probabilities.tolist())
    )


def captures(todo: Plan, seen: Seen) -> dict[str, ModuleCapture]:
    """What was asked for, by module, without modules that were never called."""
    return {name: _capture(seen.calls[name], points) for name, points in todo.taps.items() if seen.calls[name]}


def _capture(calls: Sequence[Call], points: Set[Point]) -> ModuleCapture:
    return ModuleCapture(tuple(CapturedCall(_leaves(call, points)) for call in calls))


def _leaves(call: Call, points: Set[Point]) -> dict[Point, dict[str, Array]]:
    found = {point: call.at(point) for point in Point if point in points}
    return {
        point: {path: to_numpy(tensor) for path, tensor in tensors.items()}
        for point, tensors in found.items()
        if tensors
    }


def warnings(todo: Plan, seen: Seen, gradients: Values) -> Iterator[Warning]:
    """What was asked for and cannot be returned, said aloud."""
    for name in todo.gradients_of:
        if name not in gradients:
            yield Warning(WarningCode.NO_GRADIENT, name, f"the target does not depend on the input {name!r}")
    for name, points in todo.taps.items():
        if not seen.calls[name]:
            yield Warning(
                WarningCode.MODULE_NOT_CALLED,
                name,
                f"the model never called {name!r}: there is nothing to capture",
            )
            continue
        for point in sorted(points, key=list(Point).index):
            silent = [index for index, call in enumerate(seen.calls[name]) if not call.at(point)]
            if silent:
                yield _silence(name, point, silent)


def _silence(name: str, point: Point, silent: list[int]) -> Warning:
    which = f"call {', '.join(map(str, silent))} of {name!r}"
    if point.is_gradient:
        return Warning(
            WarningCode.NO_GRADIENT,
            name,
            f"the target's gradient does not reach the {point.value} of {which}",
        )
    return Warning(WarningCode.NOT_A_TENSOR, name, f"there is no tensor at the {point.value} of {which}")
