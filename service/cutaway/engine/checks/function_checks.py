"""Tests each custom function of a model by itself, where the adjoint test of the whole model is refused.

A ``torch.autograd.Function`` is code of the model's author; the backward of PyTorch's own operators is trusted. At the
arguments that the model gives it, and for the gradient u that arrives at its outputs, ``<J v, u>`` from differences of
the function alone must be ``<v, Jᵀ u>``, for a direction v at each of its arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from cutaway.engine.checks.adjoint import Run, places
from cutaway.engine.checks.forward_mode import differences
from cutaway.engine.checks.function_calls import Apply, calling_functions, copied, is_floating, several
from cutaway.engine.model.inspected_model import gradients
from cutaway.engine.passes.pass_recorder import AttributionProblem

_ALLOWED = 1e-3
"""How much the two sides may differ, beyond the errors of differences and of roundings."""

_UNCERTAIN = 0.2
"""A larger possible error, as a part of the larger side, proves nothing."""

_MOST_CALLS = 8
"""How many calls of a function are tested, from the first on."""


class FunctionChecks(NamedTuple):
    """The names of functions whose backward is wrong, and of those that could not be tested."""

    wrong: Sequence[str]
    untested: Sequence[str]


@dataclass(frozen=True)
class _Call:
    """A call of a function in the model's pass.

    Attributes:
        name: the function's name.
        apply: calls it.
        args: copies of its arguments.
        moved: the numbers of the arguments that have a gradient.
        arrived: by number of the output, the gradient that arrived there.
    """

    name: str
    apply: Apply
    args: Sequence[Any]
    moved: Sequence[int]
    arrived: dict[int, Tensor] = field(default_factory=dict)

    def keep(self, number: int, gradient: Tensor | None) -> None:
        """Keeps the gradient that arrives at an output; None arrives at one that is not used."""
        if gradient is not None:
            self.arrived[number] = gradient.clone()


def check_functions(problem: AttributionProblem) -> FunctionChecks:
    """Tests the functions between the target and the places that the attribution's gradient goes back to."""
    calls = [call for run in places(problem) for call in _calls(problem, run) if call.arrived]
    outcomes = [(call.name, _is_right(call)) for call in calls]
    wrong, untested = (list(dict.fromkeys(name for name, right in outcomes if right is kind)) for kind in (False, None))
    return FunctionChecks(wrong, untested)


def _calls(problem: AttributionProblem, run: Run) -> list[_Call]:
    """Runs a forward and a backward pass, and returns the calls of custom functions, with arguments and arriving
    gradients."""
    calls: list[_Call] = []
    numbers: Counter[type[Function]] = Counter()
    leaves: list[Tensor] = []

    def leaf(tensor: Tensor) -> Tensor:
        leaves.append(tensor.detach().clone().requires_grad_())
        return leaves[-1].clone()  # the model may change it in place

    def record(function: type[Function], apply: Apply, args: Sequence[Any]) -> Any:
        moved = [number for number, value in enumerate(args) if is_floating(value) and _is_moved(value)]
        if not (moved and torch.is_grad_enabled() and numbers[function] < _MOST_CALLS):
            return apply(*args)
        numbers[function] += 1
        calls.append(call := _Call(function.__name__, apply, copied(args), moved))
        outputs = apply(*args)
        for number, output in enumerate(several(outputs)):
            if is_floating(output) and output.requires_grad:
                output.register_hook(partial(call.keep, number))
        return outputs

    with torch.enable_grad():
        with problem.model.undivided(), calling_functions(record):
            read = run(leaf)
        scalars = problem.target.scalars(read)
        if leaves and scalars.requires_grad:
            gradients(scalars, leaves)
    return calls


def _is_moved(value: Tensor) -> bool:
    """Returns whether the attribution's gradient goes back to ``value``: not to parameters, which are leaves."""
    return value.requires_grad and not value.is_leaf and bool(value.numel())


def _is_right(call: _Call) -> bool | None:
    """Returns whether the backward is that of the forward; None where that cannot be found out."""
    leaves = {number: call.args[number].detach().clone().requires_grad_() for number in call.moved}
    given = [value.detach() if isinstance(value, Tensor) else value for value in call.args]
    try:
        with torch.enable_grad():
            # Copies, because the function may change them in place.
            outputs = several(call.apply(*copied(leaves.get(number, value) for number, value in enumerate(given))))
            reached = {number: outputs[number] for number in call.arrived}
            found = torch.autograd.grad(
                list(reached.values()), list(leaves.values()), list(call.arrived.values()), allow_unused=True
            )
        sides = [_side(call, given, number, gradient) for number, gradient in zip(leaves, found)]
    except Exception:  # the function needs what surrounds it in the model
        return None
    return False if False in sides else None if None in sides else True


def _product(change: Tensor, gradient: Tensor) -> float:
    """Returns by how much ``change`` changes what has this ``gradient``; for complex numbers as PyTorch defines it."""
    double = torch.complex128 if gradient.is_complex() else torch.float64
    return float((change.to(double) * gradient.to(double).conj()).sum().real)


def _side(call: _Call, given: Sequence[Any], number: int, gradient: Tensor | None) -> bool | None:
    """Returns whether forward and backward of a call agree along a random direction at one argument; None if errors are
    too large to tell."""
    value = given[number]
    generator = torch.Generator().manual_seed(number)
    drawn = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value) * (value.abs().mean() or 1.0)
    along = drawn if gradient is None else torch.where(gradient == 0, drawn, drawn.abs() * gradient.sgn())
    with torch.no_grad():
        slopes = differences(call.apply, given, [along if index == number else None for index in range(len(given))])
    if slopes is None:
        return None
    pairs = [(slopes.by_output[index], cotangent) for index, cotangent in call.arrived.items()]
    forward = sum(_product(slope, cotangent) for slope, cotangent in pairs)
    backward = 0.0 if gradient is None else _product(along, gradient)
    largest = max(abs(forward), abs(backward))
    error = slopes.error * sum(float(slope.norm() * cotangent.norm()) for slope, cotangent in pairs)
    error += torch.finfo(value.dtype).eps ** 0.5 * largest
    if not error <= _UNCERTAIN * largest:
        return None
    return bool(abs(forward - backward) <= _ALLOWED * largest + error)
