"""The adjoint test: whether a model's backward pass computes the derivative of its forward pass.

For every direction v and every cotangent u, ``<J v, u> = <v, Jᵀ u>``. The left side comes from a forward-mode
derivative (`forward_mode`), the right side from the backward pass. Both are exact up to rounding: there is no step
length, and kinks do not matter. The direction v has the signs of the gradient, so that the terms of the right side do
not cancel. An error of a few percent in one place of the model is then far above rounding.

Where a model subtracts numbers that are nearly equal, rounding alone can exceed the tolerance. Rounding is random: at
slightly other inputs it has another size and sign. A wrong backward pass is wrong there by the same part.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules import module as torch_modules

from cutaway.contract.errors import InvalidArgument
from cutaway.contract.requests import GuidedGradCam
from cutaway.engine.checks.forward_mode import ForwardModeRefused, tangents_pass
from cutaway.engine.hooks.hook_site import Override
from cutaway.engine.hooks.observe import observing
from cutaway.engine.model.inspected_model import gradients
from cutaway.engine.passes.pass_recorder import AttributionProblem
from cutaway.engine.passes.reference_inputs import host, operator_dtypes
from cutaway.engine.runtime.numerics import ADJOINT, SUM, unmasked

Scalars: TypeAlias = Callable[[Tensor], Tensor]
"""Reduces what the target is read from to one number, or to one for each row."""

_Change: TypeAlias = Callable[[Tensor], Tensor]
_Run: TypeAlias = Callable[[_Change], Tensor]
"""Runs the model with the floating tensors of one place changed, and returns what the target is read from."""


class Mismatch(NamedTuple):
    """The change of the scalars along a direction.

    Attributes:
        forward: as the forward pass has it.
        gradient: as the gradient has it.
        random: whether the two differ at random, by rounding errors, and so much that the gradient says little.
    """

    forward: float
    gradient: float
    random: bool = False


_LOOKS = 8
"""At how many inputs near the one at hand a mismatch is looked at again."""

_FEWEST = 3
"""The fewest finite errors from which the test concludes anything."""

_CERTAINTY = 5
"""The distance of the mean mismatch from 0, in standard errors, that rounding does not explain."""

_MOST_ROUNDING = 0.02
"""A gradient with larger rounding errors than this part is not to be relied on."""


class _Sides(NamedTuple):
    """The two sides of the test.

    Attributes:
        forward: the derivative of the forward pass.
        gradient: what the backward pass says of it.
        allowed: how much they may differ.
        directions: along which.
        is_whole: whether ``forward`` contains all that the forward pass did.
    """

    forward: float
    gradient: float
    allowed: float
    directions: list[Tensor]
    is_whole: bool

    @property
    def error(self) -> float:
        """The signed difference, relative to the larger side."""
        return (self.gradient - self.forward) / (max(abs(self.forward), abs(self.gradient)) or 1.0)

    @property
    def agree(self) -> bool:
        """Whether they differ by no more than is allowed; NaN is no mismatch."""
        return not abs(self.forward - self.gradient) > self.allowed


def any_mismatch(problem: AttributionProblem) -> Mismatch | None:
    """Returns a mismatch for a random cotangent at the whole output: None means that every target's gradient is right.

    Raises:
        ForwardModeRefused: an operation of the model has no forward-mode derivative.
    """
    generator = torch.Generator().manual_seed(1)
    drawn: list[Tensor] = []

    def scalars(output: Tensor) -> Tensor:
        if not drawn:
            random = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output)
            drawn[:] = [random, unmasked(output.detach())]
        return (torch.where(drawn[1], output, 0.0) * drawn[0]).sum()

    return _first_mismatch(problem, scalars)


def target_mismatch(problem: AttributionProblem) -> Mismatch | None:
    """Returns a mismatch for the problem's own target; raises as `any_mismatch`."""
    return _first_mismatch(problem, problem.target.scalars)


def _first_mismatch(problem: AttributionProblem, scalars: Scalars) -> Mismatch | None:
    if torch_modules._global_backward_hooks or torch_modules._global_backward_pre_hooks:
        raise ForwardModeRefused("a global backward hook")
    return next((mismatch for run in _places(problem) if (mismatch := _mismatch(problem, run, scalars))), None)


def _places(problem: AttributionProblem) -> Iterator[_Run]:
    """Yields the places that the gradient of the attribution goes back to: each by itself, then all inputs together.

    By itself, a place is not hidden by the others. A backward pass may be wrong only for all inputs together.
    """
    floating = [name for name in problem.explained if problem.inputs[name].is_floating_point()]
    yield from (partial(_at_output, problem, name) for name in problem.layers)
    if floating and (not problem.layer or isinstance(problem.request, GuidedGradCam)):
        yield from (partial(_at_inputs, problem, [name]) for name in floating)
        if len(floating) > 1:
            yield partial(_at_inputs, problem, floating)
    if not (floating or problem.layer):  # behind token ids, floating values begin at embeddings
        modules = problem.model.tree.modules.items()
        yield from (partial(_at_output, problem, name) for name, module in modules if isinstance(module, nn.Embedding))


def _at_inputs(problem: AttributionProblem, names: Sequence[str], change: _Change) -> Tensor:
    return problem.read({**problem.inputs, **{name: change(problem.inputs[name]) for name in names}})


def _at_output(problem: AttributionProblem, name: str, change: _Change) -> Tensor:
    def only_floating(tensor: Tensor) -> Tensor:
        return change(tensor) if tensor.is_floating_point() else tensor

    edits = {name: [(0, Override(change=only_floating))]}
    with observing(problem.model.tree, {}, edits, batch=problem.rows) as seen, seen.forward():
        return problem.read(problem.inputs)


def _mismatch(problem: AttributionProblem, run: _Run, scalars: Scalars) -> Mismatch | None:
    here = _sides(problem, run, scalars)
    if here.agree and not here.is_whole:
        raise ForwardModeRefused("values leave PyTorch")
    if here.agree:
        return None
    again = _sides(problem, run, scalars, along=here.directions)
    if abs(again.gradient - here.gradient) > here.allowed:  # the backward pass draws random numbers
        return Mismatch(here.forward, here.gradient)
    nearby = [_sides(problem, run, scalars, look, here.directions) for look in range(1, _LOOKS + 1)]
    errors = torch.tensor([mismatch.error for mismatch in nearby if math.isfinite(mismatch.error)])
    elsewhere = not all(mismatch.agree for mismatch in nearby)
    large = max(abs(here.error), *errors.abs().tolist(), 0.0) > _MOST_ROUNDING
    if len(errors) < _FEWEST or (elsewhere and _is_systematic(errors)) or (large and not elsewhere):
        return Mismatch(here.forward, here.gradient)
    return Mismatch(here.forward, here.gradient, random=True) if large else None


def _is_systematic(errors: Tensor) -> bool:
    """Returns whether errors scatter around another number than 0."""
    scatter = float(errors.std()) / math.sqrt(len(errors))
    return abs(float(errors.mean())) > _CERTAINTY * scatter


def _sides(
    problem: AttributionProblem, run: _Run, scalars: Scalars, look: int = 0, along: list[Tensor] | None = None
) -> _Sides:
    """Returns both sides at the place that ``run`` changes, or, for other ``look`` than 0, near it."""
    leaves: list[Tensor] = []
    moved = _moved(look)

    def leaf(tensor: Tensor) -> Tensor:
        leaves.append(moved(tensor.detach()).clone().requires_grad_())
        return leaves[-1].clone()  # the model may change it in place

    with torch.enable_grad():
        output = run(leaf)
        read = scalars(output)
        arrived = gradients(read.reshape(-1), leaves) if leaves and read.requires_grad else [None] * len(leaves)
    cotangents = [torch.zeros_like(x) if gradient is None else gradient for x, gradient in zip(leaves, arrived)]
    generator = torch.Generator().manual_seed(2)
    directions = along or [_direction(x.detach(), gradient, generator) for x, gradient in zip(leaves, cotangents)]
    terms = [host(gradient) * host(direction) for gradient, direction in zip(cotangents, directions)]
    backward = sum(float(term.sum()) for term in terms)
    forward, is_whole = _forward_derivative(problem, run, scalars, directions, look)
    coarsest = max(ADJOINT.of(dtype) for dtype in {output.dtype, *operator_dtypes(problem)})
    rounding = SUM.of(output.dtype) * float(host(read).abs().sum())  # of the scalars themselves
    return _Sides(forward, backward, coarsest * max(abs(forward), abs(backward)) + rounding, directions, is_whole)


def _moved(look: int) -> _Change:
    """Returns a function that changes the tensors of one pass by the root of a rounding: the same for the same
    ``look``, nothing for 0."""
    generator = torch.Generator().manual_seed(look)

    def move(tensor: Tensor) -> Tensor:
        if not look:
            return tensor
        drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)
        size: float = torch.finfo(tensor.dtype).eps ** 0.5
        return tensor + tensor * drawn * size

    return move


def _direction(value: Tensor, gradient: Tensor, generator: torch.Generator) -> Tensor:
    """Returns random numbers of the size of ``value``, with the signs of ``gradient`` where that is not 0."""
    drawn = torch.randn(gradient.shape, generator=generator, dtype=torch.float64).to(gradient)
    drawn = drawn * (value.abs().mean() or 1.0)
    return torch.where(gradient == 0, drawn, drawn.abs() * gradient.sign())


def _forward_derivative(
    problem: AttributionProblem, run: _Run, scalars: Scalars, directions: list[Tensor], look: int
) -> tuple[float, bool]:
    """Returns the derivative along ``directions``, and whether it contains all that the forward pass did."""
    try:
        return _derivative(problem, run, scalars, directions, look)
    except (InvalidArgument, RuntimeError):
        pass
    # PyTorch's fused kernels for attention and for recurrent layers have no forward-mode derivative, its others have.
    try:
        with _plain_kernels():
            return _derivative(problem, run, scalars, directions, look)
    except (InvalidArgument, RuntimeError) as failure:
        raise ForwardModeRefused(str(failure)) from None


@contextmanager
def _plain_kernels() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a flag of other devices, which is not changed
        with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
            yield


def _derivative(
    problem: AttributionProblem, run: _Run, scalars: Scalars, directions: list[Tensor], look: int
) -> tuple[float, bool]:
    waiting, moved = iter(directions), _moved(look)

    def dual(tensor: Tensor) -> Tensor:
        made: Tensor = forward_ad.make_dual(moved(tensor.detach()).clone().requires_grad_(), next(waiting))
        return made

    with torch.enable_grad(), tangents_pass(list(problem.model.tree.modules.values())) as left:
        output = run(dual)
        is_whole = not left  # what the target does with the output is ours
        tangent = forward_ad.unpack_dual(scalars(output)).tangent
        return (0.0 if tangent is None else float(host(tangent.detach()).sum())), is_whole
