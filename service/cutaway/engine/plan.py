"""From what was asked to what must be done: globs resolved, inputs checked, layers found."""

from __future__ import annotations

from dataclasses import dataclass

from cutaway.engine import wanted
from cutaway.engine.asking import differentiable, validate
from cutaway.engine.draws import fresh_seed
from cutaway.engine.globs import is_glob
from cutaway.engine.methods import method_of
from cutaway.engine.subject import Inputs, Subject
from cutaway.engine.tap import Numbered
from cutaway.engine.wishes import Wish
from cutaway.errors import at
from cutaway.requests import (
    InspectRequest,
    Point,
    PredictedClass,
)


@dataclass(frozen=True)
class Plan:
    """What one request needs.

    Attributes:
        taps: module names, and operator addresses or globs, to what is wanted at their points, in the order of the
            reply.
        edits: what is changed, by module name and operator address.
        parameters: parameters whose gradients are returned, by name.
        gradients_of: inputs whose gradients are returned.
        differentiates: whether a backward pass is needed for captures or gradients.
        missing: what forward may stop behind; ``None`` where it must run to its end.
        seed: what random numbers are drawn from; ``None`` where there is none and nothing draws.
    """

    taps: dict[str, dict[Point, Wish]]
    edits: dict[str, list[Numbered]]
    parameters: dict[str, Wish]
    gradients_of: tuple[str, ...]
    differentiates: bool
    missing: set[tuple[str, Point]] | None
    seed: int | None


def plan(subject: Subject, request: InspectRequest, inputs: Inputs) -> Plan:
    """Resolve what ``request`` asks of ``subject``.

    Raises:
        InvalidArgument: with the field at fault, before anything has run.
    """
    taps = wanted.taps(subject.tree, request)
    parameters = wanted.parameters(subject.module, request)
    edits = wanted.edits(subject.tree, request, rows(inputs))
    with at("input_gradients"):
        gradients_of = (
            () if request.input_gradients is None else differentiable(subject, inputs, request.input_gradients)
        )
    for index, attribution in enumerate(request.attributions):
        with at(f"attributions[{index}]"):
            validate(subject, attribution, inputs, edits)
    in_taps = any(point.is_gradient for points in taps.values() for point in points)
    differentiates = bool(gradients_of or parameters) or in_taps
    stops = request.omit_predictions and not (
        differentiates or request.attributions or request.compare or request.target != PredictedClass()
    )
    missing = _missing(taps) if stops else None
    return Plan(taps, edits, parameters, gradients_of, differentiates, missing, _seed(request))


def rows(inputs: Inputs) -> int:
    """The batch size."""
    return next(iter(inputs.values())).shape[0]


def _missing(taps: dict[str, dict[Point, Wish]]) -> set[tuple[str, Point]] | None:
    """Everything that is wanted, where it is known how often; else nobody can tell when it has been seen."""
    if any(is_glob(name) or wish.call is None for name, wishes in taps.items() for wish in wishes.values()):
        return None
    return {(name, point) for name, wishes in taps.items() for point in wishes} or None


def _seed(request: InspectRequest) -> int | None:
    draws = any(method_of(attribution).draws or attribution.metrics for attribution in request.attributions)
    return fresh_seed() if draws and request.seed is None else request.seed
