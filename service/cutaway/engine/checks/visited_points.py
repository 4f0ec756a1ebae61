"""Compares Captum's passes with the passes that the method consists of: points, other inputs and target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from cutaway.contract.requests import Point
from cutaway.contract.results import Cause
from cutaway.engine.hooks.recording import copy_to_host
from cutaway.engine.passes.findings import Finding
from cutaway.engine.passes.pass_recorder import AttributionProblem, Pass, Values
from cutaway.engine.passes.repeated_batch import CannotShare, RowRange
from cutaway.engine.runtime.numerics import (
    NO_EFFECT,
    VISITED_POINTS,
    largest_error,
    largest_magnitude,
    unmasked_in_rows,
)

_Pairs: TypeAlias = Iterable[tuple[Tensor, Tensor]]
"""Tensors that should be the same, ``[copies * batch, ...]`` each; to be read more than once."""


@dataclass(frozen=True)
class _Points:
    """The points that should be visited, divided into passes as those that were, and these.

    The rows are never all in memory twice, because a method may consist of thousands of passes.
    """

    expected: Sequence[Tensor]
    visited: Sequence[Tensor]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        further = iter(self.expected)
        ahead, rows = [self.expected[0][:0]], 0
        for tensor in self.visited:
            while rows < len(tensor):
                ahead.append(next(further))
                rows += len(ahead[-1])
            joined = torch.cat(ahead).detach().cpu()
            yield joined[: len(tensor)], tensor
            ahead, rows = [joined[len(tensor) :]], rows - len(tensor)


def pass_mismatches(
    problem: AttributionProblem, points: Sequence[Values], passes: Sequence[Pass], parts: Sequence[RowRange]
) -> list[str]:
    """Returns for each of ``parts`` how ``passes`` differ from passes at ``points``, in words; ``""`` if they do not.

    Raises:
        CannotShare: ``passes`` have another number of rows than ``points``, and it is not known whose.
    """
    if other_number := _other_number(problem, points, passes):
        if len(parts) > 1:
            raise CannotShare
        return [other_number]
    found = [""] * len(parts)
    for text, pairs in _comparisons(problem, points, passes):
        if any(largest_error(*pair) for pair in pairs):
            found = [known or (text if _differ(pairs, rows) else "") for known, rows in zip(found, parts)]
    return found


def _other_number(problem: AttributionProblem, points: Sequence[Values], passes: Sequence[Pass]) -> str:
    for name in problem.explained:
        expected = sum(len(point[name]) for point in points)
        visited = sum(len(recorded.points[name]) for recorded in passes)
        if expected != visited:
            return f"Captum ran {visited} rows of {name!r} through the model; the method consists of {expected}"
    return ""


def _comparisons(
    problem: AttributionProblem, points: Sequence[Values], passes: Sequence[Pass]
) -> Iterator[tuple[str, _Pairs]]:
    """Yields what to say of a difference, and what is compared."""
    for name in problem.explained:
        text = f"Captum ran other values of {name!r} through the model than the method consists of"
        yield text, _Points([point[name] for point in points], [recorded.points[name] for recorded in passes])
    for recorded in passes:
        times = len(next(iter(recorded.points.values()))) // problem.rows
        if not times:
            continue  # part of the batch: separate passes show a mismatch
        for tensor, visited in zip(problem.additional_inputs, recorded.additional_inputs):
            pair = _repeated(tensor.detach().cpu(), times), visited
            yield "Captum changed an input that is not explained", [pair]
        if recorded.cotangent is not None:
            pair = _cotangent(problem, recorded.output, times), recorded.cotangent
            yield "Captum differentiated another scalar than the target", [pair]


def _cotangent(problem: AttributionProblem, output: Tensor, times: int) -> Tensor:
    target = problem.target.for_rows(torch.arange(problem.rows, device=problem.model.device).repeat(times))
    return copy_to_host(target.gradient_at(output.to(problem.model.device)))


def _repeated(tensor: Tensor, times: int) -> Tensor:
    return tensor.repeat(times, *[1] * (tensor.ndim - 1))


def _differ(pairs: _Pairs, rows: RowRange) -> bool:
    """Returns whether ``rows`` differ in one of ``pairs`` by more than a rounding of their largest value."""
    error = scale = allowed = 0.0
    for pair in pairs:
        expected, visited = map(rows.of_copies, pair)
        error, scale = max(error, largest_error(expected, visited)), max(scale, largest_magnitude(expected))
        allowed = VISITED_POINTS.of(expected.dtype) * (scale or 1.0) if expected.is_floating_point() else 0.0
    return error > allowed


# Finds rows whose gradient is zero, or too small to explain anything.


class GradientEffects(NamedTuple):
    """What the target's gradients do in each row, ``[batch]`` of booleans.

    Attributes:
        matter: whether in any pass the gradient times the size of what it is taken at, the input or a layer's output,
            is more than a rounding of the target; True where no pass shows it.
        are_zero: whether the gradient is exactly zero in every pass.
    """

    matter: Tensor
    are_zero: Tensor


def gradient_effects(problem: AttributionProblem, passes: Sequence[Pass]) -> GradientEffects:
    """Returns what the gradients in ``passes`` do in each row."""
    seen = [(recorded, *each) for recorded in passes for each in _differentiated(problem, recorded)]
    matter = torch.full((problem.rows,), not seen)
    for at_last_point, (recorded, value, gradient) in product((True, False), seen):
        matter |= _gradient_matters(problem, recorded, value, gradient, at_last_point)
        if bool(matter.all()):
            return GradientEffects(matter, ~matter)
    are_zero = torch.stack([_is_zero(problem, recorded, gradient) for recorded, _, gradient in seen]).all(dim=0)
    return GradientEffects(matter, are_zero)


def saturated(problem: AttributionProblem, effects: GradientEffects) -> Finding | None:
    """Finds rows whose gradient is zero, or too small to explain anything."""
    matter, zero = effects
    if bool(matter.all()):
        return None
    what = f"the layer {problem.layer!r}" if problem.layer else "it"
    if bool((zero | matter).all()):
        return Finding(
            Cause.NO_GRADIENT,
            f"the gradient is exactly zero in {row_list(zero)}: near this input the target does not depend on {what} "
            "(are all ReLUs on the way off?); explain another target, or use a method that perturbs the input",
        )
    return Finding(
        Cause.SATURATED,
        f"the target is saturated in {row_list(~matter)}: its gradient is smaller than the rounding errors of the "
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
    elsewhere = bool(problem.layer) and not problem.is_batch_first and tensor.ndim == 3 and tensor.shape[1] == rows
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
    effect = (gradients.abs() * torch.maximum(sizes, _usual_sizes(problem, sizes))).sum(dim=1)
    output = torch.where(unmasked_in_rows(outputs), outputs, 0.0).abs().amax(dim=1)
    matters = ~(effect <= NO_EFFECT.of(gradient.dtype) * output)  # NaN is not small
    return matters.reshape(-1, problem.rows).any(dim=0)


def _usual_sizes(problem: AttributionProblem, sizes: Tensor) -> Tensor:
    """Returns the mean of each row's ``sizes`` at all points of a pass, ``[points * batch, 1]``; 1 in place of 0."""
    means = sizes.mean(dim=1).reshape(-1, problem.rows).mean(dim=0)
    return torch.where(means == 0, 1.0, means).repeat(len(sizes) // problem.rows).unsqueeze(1)


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
