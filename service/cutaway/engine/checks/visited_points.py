"""Compares Captum's passes with the passes that the method consists of: points, other inputs and target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from cutaway.contract.requests import Point
from cutaway.contract.results import Cause
from cutaway.engine.hooks.recording import copy_to_host
from cutaway.engine.passes.findings import Finding
from cutaway.engine.passes.pass_recorder import AttributionProblem, Pass, Values
from cutaway.engine.runtime.numerics import NO_EFFECT, VISITED_POINTS, largest_error, largest_magnitude, unmasked


def pass_mismatch(problem: AttributionProblem, points: Sequence[Values], passes: Sequence[Pass]) -> str:
    """Returns how ``passes`` differ from passes at ``points``, in words; ``""`` if they do not."""
    for name in problem.explained:
        expected = [point[name] for point in points]
        visited = [recorded.points[name] for recorded in passes]
        n_expected, n_visited = (sum(tensor.shape[0] for tensor in side) for side in (expected, visited))
        if n_expected != n_visited:
            return f"Captum ran {n_visited} rows of {name!r} through the model; the method consists of {n_expected}"
        if not _same_rows(expected, visited):
            return f"Captum ran other values of {name!r} through the model than the method consists of"
    return next((mismatch for mismatch in (_other_mismatch(problem, each) for each in passes) if mismatch), "")


def _same_rows(expected: Sequence[Tensor], visited: Sequence[Tensor]) -> bool:
    """Returns whether all rows are the same, however they are divided into tensors.

    The rows are never all in memory twice, because a method may consist of thousands of passes.
    """
    error = scale = 0.0
    for part, tensor in zip(_in_parts(expected, [tensor.shape[0] for tensor in visited]), visited):
        error, scale = max(error, largest_error(part, tensor)), max(scale, largest_magnitude(part))
    return _is_rounding(error, scale, expected[0].dtype)


def _in_parts(tensors: Sequence[Tensor], lengths: Sequence[int]) -> Iterator[Tensor]:
    """Yields the rows of ``tensors`` in parts of ``lengths``, on the host."""
    further = iter(tensors)
    ahead, rows = [tensors[0][:0]], 0
    for length in lengths:
        while rows < length:
            ahead.append(next(further))
            rows += ahead[-1].shape[0]
        joined = torch.cat(ahead).detach().cpu()
        yield joined[:length]
        ahead, rows = [joined[length:]], rows - length


def _other_mismatch(problem: AttributionProblem, recorded: Pass) -> str:
    times = len(next(iter(recorded.points.values()))) // problem.rows
    if not times:
        return ""  # part of the batch: separate passes show a mismatch
    for expected, visited in zip(problem.additional_inputs, recorded.additional_inputs):
        if not _same(_repeated(expected.detach().cpu(), times), visited):
            return "Captum changed an input that is not explained"
    if recorded.cotangent is not None and not _same(_cotangent(problem, recorded.output, times), recorded.cotangent):
        return "Captum differentiated another scalar than the target"
    return ""


def _cotangent(problem: AttributionProblem, output: Tensor, times: int) -> Tensor:
    target = problem.target.for_rows(torch.arange(problem.rows, device=problem.model.device).repeat(times))
    return copy_to_host(target.gradient_at(output.to(problem.model.device)))


def _repeated(tensor: Tensor, times: int) -> Tensor:
    return tensor.repeat(times, *[1] * (tensor.ndim - 1))


def _same(expected: Tensor, visited: Tensor) -> bool:
    return _is_rounding(largest_error(expected, visited), largest_magnitude(expected), expected.dtype)


def _is_rounding(error: float, scale: float, dtype: torch.dtype) -> bool:
    return error <= (VISITED_POINTS.of(dtype) * (scale or 1.0) if dtype.is_floating_point else 0.0)


# Finds rows whose gradient is zero, or too small to explain anything.


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
