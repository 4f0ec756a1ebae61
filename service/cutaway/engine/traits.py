"""What is true of a model whatever is asked: whether it repeats itself, keeps its rows apart, and differentiates
honestly. Each is found out once, by passes of its own on the first inputs of a kind, and remembered."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

import torch
from torch import Tensor

from cutaway.engine.derivative import wrong_slope
from cutaway.engine.finding import Finding
from cutaway.engine.places import custom_functions, where_apart
from cutaway.engine.subject import Inputs, Outputs, Subject
from cutaway.engine.witness import Question
from cutaway.errors import InvalidArgument
from cutaway.results import Cause

_EXACT = float("inf")
_SAME_SHAPES = 0.7
_OTHER_SHAPES = 0.45
"""How far two passes may be apart and still be the same, as powers of the data type's unit of rounding: float32's to
the power of 0.7 is 1e-5. Where shapes differ other kernels are taken, which round otherwise."""


def random_forward(question: Question) -> Finding | None:
    """Whether two passes on the same inputs differ, and where."""
    return _remembered(question, _random)


def coupled_rows(question: Question) -> Finding | None:
    """Whether a row's outputs depend on another row, and where."""
    return _remembered(question, _coupled)


def wrong_backward(question: Question) -> Finding | None:
    """Whether what flows back is something else than the derivative, and where."""
    return _remembered(question, _wrong)


def _remembered(question: Question, find: Callable[[Question], Finding | None]) -> Finding | None:
    if question.edits:  # passes are those of another model
        return None
    subject = question.subject
    key = (
        find,
        question.explained,
        question.chosen.source,
        question.rows > 1,
        *_kind(question.inputs),
        *_hooked(subject),
    )
    if key not in subject.traits:
        # These passes belong to no request: they are not counted, and do not move the generators on.
        with subject.passes.aside(), subject.dice():
            try:
                subject.traits[key] = find(question)
            except InvalidArgument:  # a model that cannot run on such inputs says so where it is asked to
                subject.traits[key] = None
    found: Finding | None = subject.traits[key]
    return found


def _kind(inputs: Inputs) -> Iterator[Hashable]:
    for name, tensor in inputs.items():
        yield name, tensor.dtype, tensor.ndim


def _hooked(subject: Subject) -> Iterator[str]:
    """The modules on which somebody registered backward hooks: ours are never modules' own."""
    for name, module in subject.tree.modules.items():
        if module._backward_hooks or module._backward_pre_hooks:
            yield name


def _run(question: Question, inputs: Inputs) -> Outputs:
    with torch.no_grad():
        return question.subject.run(inputs)


def _random(question: Question) -> Finding | None:
    first, second = (_run(question, question.inputs) for _ in range(2))
    power = _EXACT if question.subject.device.type == "cpu" else _SAME_SHAPES  # sums on CUDA have no order
    if all(_close(first[name], second[name], power) for name in first):
        return None
    where = where_apart(question.subject, question.inputs, question.inputs)
    return Finding(
        Cause.RANDOM_FORWARD,
        f"two runs of the model on the same input differ{where and f', from {where!r} on'}: its forward is random "
        "(dropout that ignores evaluation mode?), so no explanation of it can be repeated; make it deterministic",
    )


def _coupled(question: Question) -> Finding | None:
    if random_forward(question):
        return None  # nothing can be told
    before = _run(question, question.inputs)
    if question.rows == 1:
        return _moved(question, before, _with_another(question.inputs), 0, _OTHER_SHAPES)
    ends = (_moved(question, before, _all_like(question, row), row, _SAME_SHAPES) for row in (question.rows - 1, 0))
    return next((found for found in ends if found), None)


def _moved(question: Question, before: Outputs, others: Inputs, row: int, power: float) -> Finding | None:
    """Whether the outputs of ``row`` change where nothing but the other rows does."""
    after = _run(question, others)
    here = slice(row, row + 1)
    if all(_close(before[name][here], after[name][here], power) for name in before if _by_row(before[name], question)):
        return None
    where = where_apart(question.subject, question.inputs, others, here)
    return Finding(
        Cause.ROWS_COUPLED,
        f"a row's output depends on the other rows of its batch{where and f', from {where!r} on'} (a batch norm in "
        "training mode?), so gradients mix rows; send one row a request, or make the model keep its rows apart",
    )


def _all_like(question: Question, row: int) -> Inputs:
    """A row in the company of its likes alone. Inputs that are not explained stay: gradients do not flow there, and
    the longest of several lengths, say, may matter to all."""
    explained = {name: question.inputs[name] for name in question.explained}
    return {**question.inputs, **{name: _repeated(tensor, row) for name, tensor in explained.items()}}


def _repeated(tensor: Tensor, row: int) -> Tensor:
    return tensor[row : row + 1].expand_as(tensor).clone()


def _with_another(inputs: Inputs) -> Inputs:
    """The only row, and behind it another one: its elements in another order, and numbers halved."""
    further = {name: tensor.reshape(-1).flip(0).reshape(tensor.shape) for name, tensor in inputs.items()}
    halved = {name: each / 2 if each.is_floating_point() else each for name, each in further.items()}
    return {name: torch.cat([tensor, halved[name]]) for name, tensor in inputs.items()}


def _by_row(output: Tensor, question: Question) -> bool:
    return output.ndim > 0 and len(output) == question.rows


def _close(one: Tensor, other: Tensor, power: float) -> bool:
    if one.shape != other.shape:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    scale = float(torch.nan_to_num(one.double()).abs().max()) if one.numel() else 0.0
    allowed = torch.finfo(one.dtype).eps ** power * scale
    same = (one == other) | (one.isnan() & other.isnan())
    return bool((same | ((one.double() - other.double()).abs() <= allowed)).all())


def _wrong(question: Question) -> Finding | None:
    slope = None if random_forward(question) else wrong_slope(question)
    if slope is None:
        return None
    return Finding(
        Cause.WRONG_BACKWARD,
        "what flows back is not the derivative of what flowed forward: along a random direction the target changes by "
        f"{slope.differences:.3g}, and the gradient says {slope.gradient:.3g}; {_suspects(question)}",
    )


def _suspects(question: Question) -> str:
    hooked = list(_hooked(question.subject))
    if hooked:
        return f"somebody registered backward hooks on {', '.join(map(repr, hooked[:3]))}: remove them"
    customs = custom_functions(question)
    if customs:
        listed = ", ".join(f"{name} in {module!r}" for name, module in list(customs.items())[:3])
        return f"the model has autograd functions of its own: {listed}; correct their backward"
    return "is a part of the path detached, or rounded, or a gradient changed by a hook on a tensor?"
