"""Compares Captum's passes with the passes that the method consists of: points, other inputs and target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from cutaway.engine.hooks.host_copy import copy_to_host
from cutaway.engine.passes.pass_recorder import AttributionProblem, Pass, Values
from cutaway.engine.runtime.numerics import VISITED_POINTS, largest_error, largest_magnitude


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
