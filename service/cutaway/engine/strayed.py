"""Whether the passes that Captum ran are the passes that a method is made of: its points, its other inputs, its
target."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from cutaway.engine.landing import on_host
from cutaway.engine.witness import Pass, Question, Values

_ROUNDINGS = 64
"""How many units of rounding a point on a path may be off: Captum computes alphas in another order than we."""


def strayed(question: Question, due: Sequence[Values], passes: Sequence[Pass]) -> str:
    """Where ``passes`` are not the passes at the points ``due``, in words; nothing where they are."""
    for name in question.explained:
        wanted = [point[name] for point in due]
        seen = [each.points[name] for each in passes]
        many, ran = (sum(each.shape[0] for each in side) for side in (wanted, seen))
        if many != ran:
            return f"Captum ran {ran} rows of {name!r} through the model; the method is made of {many}"
        if not _same_rows(wanted, seen):
            return f"Captum visited other points of {name!r} than the method is made of"
    return next((why for why in (_strayed_otherwise(question, each) for each in passes) if why), "")


def _same_rows(wanted: Sequence[Tensor], seen: Sequence[Tensor]) -> bool:
    """Whether all rows are the same, however many there are to a tensor; never all of them side by side, since a method
    may be made of thousands of passes."""
    error = scale = 0.0
    for part, each in zip(_in_parts(wanted, [tensor.shape[0] for tensor in seen]), seen):
        error, scale = max(error, _error(part, each)), max(scale, _scale(part))
    return _is_rounding(error, scale, wanted[0].dtype)


def _in_parts(tensors: Sequence[Tensor], lengths: Sequence[int]) -> Iterator[Tensor]:
    """The rows of ``tensors`` in parts of ``lengths``, on the host."""
    further = iter(tensors)
    ahead, rows = [tensors[0][:0]], 0
    for length in lengths:
        while rows < length:
            ahead.append(next(further))
            rows += ahead[-1].shape[0]
        joined = torch.cat(ahead).detach().cpu()
        yield joined[:length]
        ahead, rows = [joined[length:]], rows - length


def _strayed_otherwise(question: Question, each: Pass) -> str:
    times = len(next(iter(each.points.values()))) // question.rows
    if not times:
        return ""  # an example by itself: the passes of our own tell
    for wanted, seen in zip(question.further, each.further):
        if not _same(_repeated(wanted.detach().cpu(), times), seen):
            return "Captum changed an input that is not explained"
    if each.cotangent is not None and not _same(_beginning(question, each.output, times), each.cotangent):
        return "Captum differentiated another scalar than the target"
    return ""


def _beginning(question: Question, output: Tensor, times: int) -> Tensor:
    """What a backward pass from the target's scalars begins with: for a class 1 at its element of each row, else 0."""
    if question.chosen.indices is not None:
        indices = _repeated(question.chosen.indices.cpu(), times)
        return torch.zeros_like(output).scatter(1, indices.unsqueeze(1), 1)
    with torch.enable_grad():
        again = output.to(question.subject.device).requires_grad_()
        (gradient,) = torch.autograd.grad(question.chosen.of(again).sum(), again)
    return on_host(gradient)


def _repeated(tensor: Tensor, times: int) -> Tensor:
    return tensor.repeat(times, *[1] * (tensor.ndim - 1))


def _same(wanted: Tensor, seen: Tensor) -> bool:
    return _is_rounding(_error(wanted, seen), _scale(wanted), wanted.dtype)


def _error(wanted: Tensor, seen: Tensor) -> float:
    """By how much an element is off at most: by nothing where both are the same infinity, or no number; by infinity
    where they cannot be compared."""
    if wanted.shape != seen.shape:
        return float("inf")
    if not wanted.is_floating_point():
        return 0.0 if torch.equal(wanted, seen) else float("inf")
    errors = (wanted.double() - seen.double()).abs()
    if not errors.numel():
        return 0.0
    largest = float(errors.max())
    if largest == largest:
        return largest
    alike = (wanted == seen) | (wanted.isnan() & seen.isnan())
    return float(errors.masked_fill(alike, 0.0).nan_to_num(float("inf")).max())


def _scale(values: Tensor) -> float:
    """The largest finite magnitude of floats."""
    if not values.is_floating_point() or not values.numel():
        return 0.0
    largest = float(values.abs().max())
    return largest if math.isfinite(largest) else float(values.abs().nan_to_num(0.0, 0.0, 0.0).max())


def _is_rounding(error: float, scale: float, dtype: torch.dtype) -> bool:
    return error <= (_ROUNDINGS * torch.finfo(dtype).eps * (scale or 1.0) if dtype.is_floating_point else 0.0)
