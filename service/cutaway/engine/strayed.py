"""Whether the passes that Captum ran are the passes that a method is made of: its points, its other inputs, its
target."""

from __future__ import annotations

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
        wanted = [point[name].detach().cpu() for point in due]
        seen = [each.points[name] for each in passes]
        many, ran = sum(map(len, wanted)), sum(map(len, seen))
        if many != ran:
            return f"Captum ran {ran} rows of {name!r} through the model; the method is made of {many}"
        if not _same_rows(wanted, seen):
            return f"Captum visited other points of {name!r} than the method is made of"
    return next((why for why in (_strayed_otherwise(question, each) for each in passes) if why), "")


def _same_rows(wanted: Sequence[Tensor], seen: Sequence[Tensor]) -> bool:
    """Whether all rows are the same, however many there are to a tensor; never all of them side by side, since a method
    may be made of thousands of passes."""
    scale = max(_scale(each) for each in _in_parts(wanted, seen))
    return all(_same(part, each, scale) for part, each in zip(_in_parts(wanted, seen), seen))


def _in_parts(wanted: Sequence[Tensor], seen: Sequence[Tensor]) -> Iterator[Tensor]:
    """The rows of ``wanted`` in parts of the lengths of ``seen``."""
    further = iter(wanted)
    ahead, rows = [wanted[0][:0]], 0
    for each in seen:
        while rows < len(each):
            ahead.append(next(further))
            rows += len(ahead[-1])
        joined = torch.cat(ahead)
        yield joined[: len(each)]
        ahead, rows = [joined[len(each) :]], rows - len(each)


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


def _scale(values: Tensor) -> float:
    """The largest finite magnitude of floats."""
    if not values.is_floating_point():
        return 0.0
    finite = values[values.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0


def _same(wanted: Tensor, seen: Tensor, scale: float | None = None) -> bool:
    if wanted.shape != seen.shape:
        return False
    if not wanted.is_floating_point():
        return torch.equal(wanted, seen)
    differ = (wanted != seen) & ~(
        wanted.isnan() & seen.isnan()
    )  # equal infinities are equal, though inf - inf is not 0
    errors = (wanted.double() - seen.double()).abs()[differ]
    largest = _scale(wanted) if scale is None else scale
    return not errors.numel() or bool(errors.max() <= _ROUNDINGS * torch.finfo(wanted.dtype).eps * (largest or 1.0))
