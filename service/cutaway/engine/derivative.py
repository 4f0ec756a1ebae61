"""Whether a model's backward pass is the derivative of its forward pass: central differences along random directions.

Where a step ahead and a step back agree on a slope, for two lengths of step, along every direction, and the gradient
says another, the gradient is wrong. Where they do not agree (kinks, rounding) nothing is said: this may miss a wrong
backward pass, and is made never to invent one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from cutaway.engine.edits import Override
from cutaway.engine.evidence import host
from cutaway.engine.hooks import observing
from cutaway.engine.subject import gradients
from cutaway.engine.witness import Question

DIRECTIONS = 4

LENGTH = 1 / 10
BESIDE = (1 / 3, 1 / 30)
"""Of the steps, in units of that at which curvature and rounding weigh the same: the first, and those of which one must
agree with it."""

LEAST = 0.02
"""A gradient this close, as a fraction, is taken for right."""

DOUBTS = 10
"""How many times its own doubt a difference must be off before it is held against the gradient."""


class Slope(NamedTuple):
    """How fast the target of one row changes along a direction.

    Attributes:
        differences: as central differences say.
        gradient: as the gradient says.
    """

    differences: float
    gradient: float


Along: TypeAlias = Callable[[Tensor], Tensor]
"""[batch], the targets where the place that is probed is moved by a tensor."""


class _Probe(NamedTuple):
    """A place to start from: its value, the target's gradient there, and the target where it is moved."""

    value: Tensor
    gradient: Tensor
    moved: Along


def wrong_slope(question: Question) -> Slope | None:
    """A row whose gradient is not the derivative, along each of several random directions; None where there is none
    that can be told. An honest gradient takes two passes beside its own and the plain one."""
    probe = _at_input(question) or _at_embedding(question)
    if probe is None:
        return None
    numbers = torch.Generator().manual_seed(0)
    here = host(probe.moved(torch.zeros_like(probe.value)))
    rows = set(range(len(probe.value)))
    found: dict[int, Slope] = {}
    for _ in range(DIRECTIONS):
        found = _wrong(probe, here, numbers)
        rows &= set(found)
        if not rows:
            return None
    return found[min(rows)]


def _wrong(probe: _Probe, here: Tensor, numbers: torch.Generator) -> dict[int, Slope]:
    """By row, the slopes along one direction that differ."""
    rows = len(probe.value)
    size = probe.value.detach().abs().reshape(rows, -1).mean(dim=1)
    size = torch.where(size > 0, size, torch.ones_like(size)).reshape(-1, *[1] * (probe.value.ndim - 1))
    signs = torch.randint(0, 2, probe.value.shape, generator=numbers).to(probe.value) * 2 - 1
    direction = signs * size
    expected = (host(probe.gradient) * host(direction)).reshape(rows, -1).sum(dim=1)
    slopes, apart = _apart(probe, here, direction, expected, LENGTH)
    if not bool(apart.any()):
        return {}
    beside = torch.stack([_apart(probe, here, direction, expected, length)[1] for length in BESIDE]).any(dim=0)
    return {
        row: Slope(float(slopes[row]), float(expected[row])) for row in (apart & beside).nonzero().flatten().tolist()
    }


def _apart(probe: _Probe, here: Tensor, direction: Tensor, expected: Tensor, length: float) -> tuple[Tensor, Tensor]:
    """[batch] each: the slopes by differences over a step, and whether they speak against ``expected``. They may be off
    by what lies between the slopes ahead and behind, and by rounding."""
    eps = torch.finfo(direction.dtype).eps
    step = length * eps ** (1 / 3)
    ahead, behind = (host(probe.moved(sign * step * direction)) for sign in (1, -1))
    slopes = (ahead - behind) / (2 * step)
    rounding = 8 * eps * torch.stack([here, ahead, behind]).abs().amax(dim=0) / step
    doubts = (ahead - 2 * here + behind).abs() / step + rounding
    largest = torch.maximum(slopes.abs(), expected.abs())
    return slopes, (expected - slopes).abs() > torch.maximum(DOUBTS * doubts, LEAST * largest)


def _at_input(question: Question) -> _Probe | None:
    """All floating inputs that are explained would do; the first does."""
    names = [name for name in question.explained if question.inputs[name].is_floating_point()]
    if not names:
        return None
    name = names[0]
    value = question.inputs[name].detach()

    def moved(by: Tensor) -> Tensor:
        with torch.no_grad():
            return question.chosen.of(question.read({**question.inputs, name: value + by}))

    leaf = value.clone().requires_grad_()
    with torch.enable_grad():
        scalars = question.chosen.of(question.read({**question.inputs, name: leaf}))
        gradient = gradients(scalars, [leaf])[0] if scalars.requires_grad else None
    return _Probe(value, torch.zeros_like(value) if gradient is None else gradient, moved)


def _at_embedding(question: Question) -> _Probe | None:
    """Behind token ids numbers begin at the first embedding that is used."""
    embeddings = [name for name, module in question.subject.tree.modules.items() if isinstance(module, nn.Embedding)]
    for name in embeddings:
        kept: list[Tensor] = []

        def leaf(tensor: Tensor, kept: list[Tensor] = kept) -> Tensor:
            kept.append(tensor.detach().clone().requires_grad_())
            return kept[-1]

        with torch.enable_grad():
            scalars = _edited(question, name, leaf)
            if not kept or len(kept[0]) != question.rows or not scalars.requires_grad:
                continue
            gradient = gradients(scalars, [kept[0]])[0]
        value = kept[0].detach()

        def moved(by: Tensor, name: str = name) -> Tensor:
            with torch.no_grad():
                return _edited(question, name, lambda tensor: tensor + by)

        return _Probe(value, torch.zeros_like(value) if gradient is None else gradient, moved)
    return None


def _edited(question: Question, name: str, change: Callable[[Tensor], Tensor]) -> Tensor:
    edits = {name: [(0, Override(change=change, call=0))]}
    with observing(question.subject.tree, {}, edits, batch=question.rows) as seen, seen.forward():
        return question.chosen.of(question.read(question.inputs))
