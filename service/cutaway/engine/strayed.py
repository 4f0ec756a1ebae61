"""Whether the passes that Captum ran are the passes that a method is made of: its points, its other inputs, its
target."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cutaway.engine.seen import on_host
from cutaway.engine.witness import Pass, Question, Values

_ROUNDINGS = 64
"""How many units of rounding a point on a path may be off: Captum computes alphas in another order than we."""


def strayed(question: Question, due: Sequence[Values], passes: Sequence[Pass]) -> str:
    """Where ``passes`` are not the passes at the points ``due``, in words; nothing where they are."""
    for name in question.explained:
        wanted = torch.cat([point[name].detach().cpu() for point in due])
        seen = torch.cat([each.points[name] for each in passes]) if passes else wanted[:0]
        if wanted.shape != seen.shape:
            return f"Captum ran {len(seen)} rows of {name!r} through the model; the method is made of {len(wanted)}"
        if not _same(wanted, seen):
            return f"Captum visited other points of {name!r} than the method is made of"
    return next((why for why in (_strayed_otherwise(question, each) for each in passes) if why), "")


def _strayed_otherwise(question: Question, each: Pass) -> str:
    times = len(next(iter(each.points.values()))) // question.rows
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
    if wanted.shape != seen.shape:
        return False
    if not wanted.is_floating_point():
        return torch.equal(wanted, seen)
    differ = (wanted != seen) & ~(
        wanted.isnan() & seen.isnan()
    )  # equal infinities are equal, though inf - inf is not 0
    errors = (wanted.double() - seen.double()).abs()[differ]
    finite = wanted[wanted.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    return not errors.numel() or bool(errors.max() <= _ROUNDINGS * torch.finfo(wanted.dtype).eps * (scale or 1.0))
