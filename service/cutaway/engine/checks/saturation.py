"""Finds rows whose gradient is zero, or too small to explain anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from cutaway.engine.passes.finding import Finding
from cutaway.engine.passes.pass_recorder import AttributionProblem, Pass
from cutaway.engine.runtime.numerics import NO_EFFECT, unmasked
from cutaway.requests import Point
from cutaway.results import Cause


def saturated(problem: AttributionProblem, passes: Sequence[Pass]) -> Finding | None:
    """Finds rows where, in every pass, the gradient times the size of what it is taken at, the input or a layer's
    output, is less than a rounding of the target."""
    seen = [(recorded, *each) for recorded in passes for each in _differentiated(problem, recorded)]
    matters = torch.zeros(problem.rows, dtype=torch.bool)
    for at_last_point, (recorded, value, gradient) in product((True, False), seen):
        matters |= _gradient_matters(problem, recorded, value, gradient, at_last_point)
        if bool(matters.all()):
            return None
    if not seen:
        return None
    zero = torch.stack([_is_zero(problem, recorded, gradient) for recorded, _, gradient in seen]).all(dim=0)
    what = f"the layer {problem.layer!r}" if problem.layer else "it"
    if bool((zero | matters).all()):
        return Finding(
            Cause.NO_GRADIENT,
            f"the gradient is exactly zero in {row_list(zero)}: near this input the target does not depend on {what} "
            "(are all ReLUs on the way off?); explain another target, or use a method that perturbs the input",
        )
    return Finding(
        Cause.SATURATED,
        f"the target is saturated in {row_list(~matters)}: its gradient is smaller than the rounding errors of the "
        "target, and explains nothing; if a softmax or sigmoid follows a logit, explain the logit",
    )


def _differentiated(problem: AttributionProblem, recorded: Pass) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the tensors that the attribution is about, with the target's gradients there."""
    if not problem.layer:
        yield from ((recorded.points[name], gradient) for name, gradient in recorded.gradients.items())
    for call in recorded.layer:
        outputs = call.at(Point.OUTPUT)
        for path, gradient in call.at(Point.GRAD_OUTPUT).items():
            if path in outputs:
                yield outputs[path], gradient


def _shows_rows(problem: AttributionProblem, recorded: Pass, tensor: Tensor) -> bool:
    """Whether axis 0 of a tensor is surely the batch: in a layer it may be another, such as that of a sequence."""
    rows = recorded.rows
    elsewhere = bool(problem.layer) and tensor.ndim == 3 and tensor.shape[1] == rows
    return tensor.shape[:1] == (rows,) and rows % problem.rows == 0 and not elsewhere


def _gradient_matters(
    problem: AttributionProblem, recorded: Pass, value: Tensor, gradient: Tensor, at_last_point: bool
) -> Tensor:
    """Returns, [batch], whether a change of ``value`` by its own size changes the target by more than a rounding, at
    one of the points of a pass, or, which is quickly told, at its last one."""
    if not all(_shows_rows(problem, recorded, each) for each in (value, recorded.output)):
        return torch.ones(problem.rows, dtype=torch.bool)
    first = -problem.rows if at_last_point else 0
    of_rows = (each.reshape(recorded.rows, -1)[first:].double() for each in (value, gradient, recorded.output))
    values, gradients, outputs = of_rows
    sizes = values.abs()
    sizes = sizes.clamp(min=float(sizes.mean()) or 1.0)
    effect = (gradients.abs() * sizes).sum(dim=1)
    output = torch.where(unmasked(outputs), outputs, 0.0).abs().amax(dim=1)
    matters = ~(effect <= NO_EFFECT.of(gradient.dtype) * output)  # NaN is not small
    return matters.reshape(-1, problem.rows).any(dim=0)


def _is_zero(problem: AttributionProblem, recorded: Pass, gradient: Tensor) -> Tensor:
    """Returns, [batch], whether a gradient is exactly zero in a row, at every point that the pass has for it."""
    if not _shows_rows(problem, recorded, gradient):
        return torch.zeros(problem.rows, dtype=torch.bool)
    return ~gradient.reshape(recorded.rows, -1).any(dim=1).reshape(-1, problem.rows).any(dim=0)


def row_list(chosen: Tensor) -> str:
    """Returns the numbers of the rows that are ``chosen``, [batch], in words."""
    numbers = chosen.nonzero().flatten().tolist()
    if len(numbers) == len(chosen):
        return "every row"
    return f"row{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:8]))}"
