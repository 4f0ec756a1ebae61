"""Proves that a model's backward pass computes the derivative of its forward pass: the adjoint test.

For every direction v and every cotangent u, ``<J v, u> = <v, Jᵀ u>``. The left side comes from a forward-mode
derivative (`forward_mode`), the right side from the backward pass. Both are exact up to rounding: there is no step
length, and kinks do not matter. The direction v has the signs of the gradient, so that the terms of the right side do
not cancel. An error of a few percent in one place of the model is then far above rounding.

Where a model subtracts numbers that are nearly equal, rounding alone can exceed the tolerance. Rounding is random: at
slightly other inputs it has another size and sign. A wrong backward pass is wrong there by the same part.

Central differences are a second look at what forward mode may not see, such as a value that is cut off in a script
function or in another thread. They replace the test for a model that has no forward-mode derivative. They find large
errors only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_modules

from cutaway.contract.errors import InvalidArgument
from cutaway.contract.requests import GuidedGradCam
from cutaway.engine.checks.forward_mode import ForwardModeRefused, Rounding, tangents_pass
from cutaway.engine.hooks.edits import Override
from cutaway.engine.hooks.observe import observing
from cutaway.engine.model.inspected_model import gradients
from cutaway.engine.passes.pass_recorder import AttributionProblem
from cutaway.engine.passes.reference_inputs import host, operator_dtypes
from cutaway.engine.runtime import rng
from cutaway.engine.runtime.numerics import ADJOINT, SUM, unmasked

Scalars: TypeAlias = Callable[[Tensor], Tensor]
"""Reduces what the target is read from to one number, or to one for each row."""

Change: TypeAlias = Callable[[Tensor], Tensor]
Run: TypeAlias = Callable[[Change], Tensor]
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


def any_mismatch(problem: AttributionProblem, *, repeats: bool = True) -> Mismatch | None:
    """Returns a mismatch for a random cotangent at the whole output: None means that every target's gradient is right.

    Args:
        problem: the problem.
        repeats: whether the second backward pass is tested, and not the first.

    Raises:
        ForwardModeRefused: an operation of the model has no forward-mode derivative.
    """
    drawn: list[Tensor] = []

    def scalars(part: int, output: Tensor) -> Tensor:
        if not drawn:
            drawn[:] = _cotangents(output.detach())
        return (torch.where(drawn[part] != 0, output, 0.0) * drawn[part]).sum()

    found = _first_mismatch(problem, partial(scalars, 0), repeats=repeats)
    if found or not drawn or not drawn[1].any():
        return found
    return _first_mismatch(problem, partial(scalars, 1), repeats=repeats, may_vanish=True)


_FAR = 100.0
"""The most that outputs may differ from their median magnitude by, as a factor, and count as equally large."""


def _cotangents(output: Tensor) -> tuple[Tensor, Tensor]:
    """Returns random cotangents at the elements of ``output``, and at those that look like masks.

    They are about 1, as those of targets are: some wrong gradients are right for small ones. At elements that are far
    larger than most they are smaller: an error in others would vanish beside the rounding of these. At far smaller ones
    they are larger.
    """
    magnitudes, plain = output.double().abs(), unmasked(output)
    known = magnitudes[plain & (magnitudes > 0)]
    ratio = torch.where(magnitudes > 0, (known.median() if known.numel() else 1.0) / magnitudes, 1.0)
    factors = (_FAR * ratio).clamp(max=1) * (ratio / _FAR).clamp(1, _FAR)
    drawn = rng.normal(output, torch.Generator().manual_seed(1)) * factors.to(output.dtype)
    return drawn.where(plain, 0.0), drawn.where(~plain & output.isfinite(), 0.0)


def target_mismatch(problem: AttributionProblem) -> Mismatch | None:
    """Returns a mismatch for the problem's own target; raises as `any_mismatch`.

    Along one direction, a wrong gradient may be right by chance, within the tolerance of a coarse data type.
    """
    return _first_mismatch(problem, problem.target.scalars, _DIRECTIONS)


# Places that the gradient of an attribution goes back to.


def _first_mismatch(
    problem: AttributionProblem,
    scalars: Scalars,
    directions: int = 1,
    *,
    repeats: bool = True,
    may_vanish: bool = False,
) -> Mismatch | None:
    """Runs the adjoint test at each place of the attribution, along several directions, and returns the first
    mismatch."""
    if torch_modules._global_backward_hooks or torch_modules._global_backward_pre_hooks:
        raise ForwardModeRefused("a global backward hook")
    tests = (
        _AdjointTest(problem, run, scalars, way, repeats, may_vanish)
        for run in places(problem)
        for way in range(directions)
    )
    return next((mismatch for test in tests if (mismatch := test.mismatch())), None)


def places(problem: AttributionProblem) -> Iterator[Run]:
    """Yields each place by itself, so that the others do not hide it, then all inputs together: a backward pass may be
    wrong for these only."""
    layers, floating = differentiated(problem)
    yield from (partial(_at_output, problem, name) for name in layers)
    yield from (partial(_at_inputs, problem, [name]) for name in floating)
    if len(floating) > 1:
        yield partial(_at_inputs, problem, floating)


def differentiated(problem: AttributionProblem) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the layers, and the inputs, that the gradient of an attribution goes back to."""
    to_inputs = not problem.layer or isinstance(problem.request, GuidedGradCam)
    return problem.layers, tuple(_floating(problem)) if to_inputs else ()


def _floating(problem: AttributionProblem) -> list[str]:
    return [name for name in problem.explained if problem.inputs[name].is_floating_point()]


def _at_inputs(problem: AttributionProblem, names: Sequence[str], change: Change) -> Tensor:
    return problem.read({**problem.inputs, **{name: change(problem.inputs[name]) for name in names}})


def _at_output(problem: AttributionProblem, name: str, change: Change, call: int | None = None) -> Tensor:
    def only_floating(tensor: Tensor) -> Tensor:
        return change(tensor) if tensor.is_floating_point() else tensor

    edits = {name: [(0, Override(change=only_floating, call=call))]}
    with observing(problem.model.tree, {}, edits) as seen, seen.forward():
        return problem.read(problem.inputs)


# The adjoint test at one place.

_DIRECTIONS = 4
"""Along how many directions a suspected gradient is tested."""

_LOOKS = 8
"""At how many inputs near the one at hand a mismatch is looked at again."""

_FEWEST = 3
"""The fewest finite errors from which the test concludes anything."""

_CERTAINTY = 5
"""The distance of the mean mismatch from 0, in standard errors, that rounding does not explain."""

_LOUD = 2.0**10
"""A factor for numbers that are too small for float16, and the inverse of one for those that are too large."""

_MOST_ROUNDING = 0.02
"""A gradient with larger rounding errors than this part is not to be relied on."""


class _Sides(NamedTuple):
    """The two sides of the test.

    Attributes:
        forward: the derivative of the forward pass.
        gradient: what the backward pass says of it.
        tolerance: how much they may differ for rounding, as a part of the larger side.
        allowed: how much they may differ.
        directions: along which.
        is_whole: whether ``forward`` contains all that the forward pass did.
    """

    forward: float
    gradient: float
    tolerance: float
    allowed: float
    directions: list[Tensor]
    is_whole: bool

    @property
    def error(self) -> float:
        """The difference relative to the larger side, and negative if the gradient is too small: of a gradient that is
        too large everywhere it has one sign, whether the target rises or falls."""
        relative = (self.gradient - self.forward) / (max(abs(self.forward), abs(self.gradient)) or 1.0)
        return math.copysign(1.0, self.forward) * relative

    @property
    def agree(self) -> bool:
        """Whether they differ by no more than is allowed; NaN is no mismatch."""
        return not abs(self.forward - self.gradient) > self.allowed


@dataclass(frozen=True)
class _AdjointTest:
    """The test at the place that ``run`` changes, of the derivative of ``scalars``, along the direction ``way``; with
    ``repeats`` of a second backward pass. Without ``may_vanish``, a derivative of zero proves nothing."""

    problem: AttributionProblem
    run: Run
    scalars: Scalars
    way: int
    repeats: bool
    may_vanish: bool

    def mismatch(self) -> Mismatch | None:
        """Returns the mismatch of the two sides; None if they agree, or differ by small rounding errors. A difference
        is tested again at inputs nearby, where rounding errors scatter around 0. If it is only here, in a coarse type,
        it is tested one rounding away: at a kink, or where numbers cancel, it is random there too."""
        here = self._sides()
        if math.isfinite(here.gradient) and not math.isfinite(here.forward):  # the direction is too long for the type
            here = self._sides(along=[direction / _LOUD for direction in here.directions])
        if here.agree and not here.is_whole:
            raise ForwardModeRefused("values leave PyTorch")
        if here.agree:
            if here.forward == here.gradient == 0 and not self.may_vanish:
                self.problem.model.proofs.proves_nothing()
            return None
        again = self._sides(along=here.directions)
        if abs(again.gradient - here.gradient) > here.allowed:  # the backward pass draws random numbers
            return Mismatch(here.forward, here.gradient)
        nearby = [self._sides(look, here.directions) for look in range(1, _LOOKS + 1)]
        elsewhere = not all(sides.agree for sides in nearby)
        large = max(abs(here.error), *(abs(error) for error in _finite_errors(nearby))) > _MOST_ROUNDING
        only_here, scatters = large and not elsewhere, elsewhere
        if only_here and here.tolerance > ADJOINT.float32:
            nearby, scatters = [self._sides(-look, here.directions) for look in range(1, _LOOKS + 1)], True
        errors = _finite_errors(nearby)
        if len(errors) < _FEWEST or (_is_systematic(errors) if scatters else only_here):
            return Mismatch(here.forward, here.gradient, random=self._underflows(here.directions))
        return Mismatch(here.forward, here.gradient, random=True) if large else None

    def _underflows(self, directions: list[Tensor]) -> bool:
        """Returns whether the gradient is right but for numbers below the least of float16: it is right if larger."""
        if torch.float16 not in operator_dtypes(self.problem):
            return False
        loud = self._sides(along=directions, scale=_LOUD)
        return math.isfinite(loud.gradient) and loud.agree

    def _sides(self, look: int = 0, along: list[Tensor] | None = None, scale: float = 1.0) -> _Sides:
        """Runs a backward pass and a forward-mode pass, and returns both derivatives along a direction. ``look`` 0
        tests the values themselves, and other numbers test values nearby: see `rng.moved`. Numbers of the backward pass
        are ``scale`` times as large as those of the target."""
        leaves: list[Tensor] = []
        moved = rng.moved(look)

        def leaf(tensor: Tensor) -> Tensor:
            leaves.append(moved(tensor.detach()).clone().requires_grad_())
            return leaves[-1].clone()  # the model may change it in place

        with torch.enable_grad():
            output = self.run(leaf)
            read = self.scalars(output)
            reached = leaves and read.requires_grad
            backward = _second_gradients if self.repeats else gradients
            arrived = backward(scale * read.reshape(-1), leaves) if reached else [None] * len(leaves)
        cotangents = [torch.zeros_like(x) if gradient is None else gradient for x, gradient in zip(leaves, arrived)]
        generator = torch.Generator().manual_seed(2 + self.way)
        uneven = self.way > 0
        drawn = (rng.direction(x.detach(), gradient, generator, uneven) for x, gradient in zip(leaves, cotangents))
        directions = along or list(drawn)
        terms = [host(gradient) * host(direction) for gradient, direction in zip(cotangents, directions)]
        gradient = sum(float(term.sum()) for term in terms) / scale
        forward, is_whole = self._forward_derivative(directions, look)
        coarsest = max(ADJOINT.of(dtype) for dtype in {output.dtype, *operator_dtypes(self.problem)})
        allowed = coarsest * max(abs(forward), abs(gradient))
        rounding = SUM.of(output.dtype) * float(host(read).abs().sum())  # of the scalars themselves
        return _Sides(forward, gradient, coarsest, allowed + rounding, directions, is_whole)

    def _forward_derivative(self, directions: list[Tensor], look: int) -> tuple[float, bool]:
        """Returns the derivative along ``directions``, and whether it contains all that the forward pass did."""
        # Nobody runs back through this pass, but for a model that does so itself.
        with suppress(InvalidArgument, RuntimeError), torch.autograd.graph.saved_tensors_hooks(_nothing, _nothing):
            return self._derivative(directions, look)
        try:
            return self._derivative(directions, look)
        except (InvalidArgument, RuntimeError) as failure:
            raise ForwardModeRefused(str(failure)) from None

    def _derivative(self, directions: list[Tensor], look: int) -> tuple[float, bool]:
        """Runs a forward-mode pass, and returns the derivative along ``directions``. Also returns whether the
        derivative contains all that the pass did."""
        waiting, moved = iter(directions), rng.moved(look)

        def dual(tensor: Tensor) -> Tensor:
            # Inside the pass detach() keeps the tangent, which a layer that is called again receives of its last call.
            primal = forward_ad.unpack_dual(tensor).primal.detach()
            made: Tensor = forward_ad.make_dual(moved(primal).clone().requires_grad_(), next(waiting))
            return made

        model = self.problem.model
        with torch.enable_grad(), model.undivided(), tangents_pass(list(model.tree.modules.values())) as left:
            output = self.run(dual)
            is_whole = not left  # what the target does with the output is ours
            tangent = forward_ad.unpack_dual(self.scalars(output)).tangent
            return (0.0 if tangent is None else float(host(tangent.detach()).sum())), is_whole


def _second_gradients(scalars: Tensor, leaves: list[Tensor]) -> Sequence[Tensor | None]:
    """Returns the gradients of a second backward pass. The first pass runs on the negated scalars, so that values kept
    from it have the wrong sign."""
    first = gradients(-scalars, leaves, again=True)
    try:
        return gradients(scalars, leaves)
    except InvalidArgument:  # a function that can run back once only
        return [each if each is None else -each for each in first]


def _nothing(_: Any) -> Any:
    """Keeps no tensor for a backward pass."""


def _finite_errors(sides: Sequence[_Sides]) -> list[float]:
    return [each.error for each in sides if math.isfinite(each.error)]


def _is_systematic(errors: list[float]) -> bool:
    """Returns whether errors scatter around another number than 0."""
    found = torch.tensor(errors)
    scatter = float(found.std()) / math.sqrt(len(errors))
    return abs(float(found.mean())) > _CERTAINTY * scatter


# Central differences along random directions. The gradient is wrong if the slopes of a step ahead and a step back agree
# and the gradient's slope differs. This must hold for two lengths of step and along every direction. Where the slopes
# do not agree (kinks, rounding), nothing is concluded: a wrong backward pass may be missed, a right one is not accused.

_STEP = 1 / 10
_OTHER_STEPS = (1 / 3, 1 / 30)
"""The lengths of the steps of which one must confirm the first, like that in units of eps^(1/3).

At eps^(1/3), the errors from curvature and from rounding are about equal.
"""

_NEGLIGIBLE = 0.02
"""A slope that differs by less than this fraction counts as right."""

_MOST_OF_OWN = 100
"""How many times its own magnitude an element that is not 0 moves at most, in units of the step."""

_UNCERTAINTIES = 10
"""How many times its own uncertainty a difference must be, to count against the gradient."""


class _Probe(NamedTuple):
    """The tensor that is shifted, the targets there, their gradient, and the function of its change: all [batch, ...].

    ``dtype``: the coarsest that the model computes in.
    """

    value: Tensor
    here: Tensor
    gradient: Tensor
    targets: Run
    dtype: torch.dtype

    def shifted(self, by: Tensor) -> Tensor:
        """Returns the targets, [batch], with ``by`` added to the tensor; float64 on the host."""
        with torch.no_grad():
            return host(self.targets(lambda tensor: tensor + by))


def wrong_slope(problem: AttributionProblem) -> Mismatch | None:
    """Returns the slopes of a row whose gradient is wrong along each of several random directions.

    None if there is none, or nothing can be concluded. For a right gradient this takes three passes at each place that
    the gradient goes back to, and one of them with a backward pass.
    """
    return next((wrong for probe in _probes(problem) if (wrong := _wrong_at(probe))), None)


def _wrong_at(probe: _Probe) -> Mismatch | None:
    """Returns the slopes of a row that contradict the gradient along every one of several directions; None without such
    a row."""
    generator = torch.Generator().manual_seed(0)
    wrong: dict[int, Mismatch] = {}
    rows = set(range(len(probe.value)))
    for _ in range(_DIRECTIONS + max(0, len(rows).bit_length() - 4) // 2):  # of many rows, one may be by chance
        wrong = _wrong_rows(probe, generator)
        rows &= set(wrong)
        if not rows:
            return None
    return wrong[min(rows)]


def _wrong_rows(probe: _Probe, generator: torch.Generator) -> dict[int, Mismatch]:
    """Returns the rows whose slopes differ along one random direction."""
    rows = len(probe.value)
    size = probe.value.abs().reshape(rows, -1).mean(dim=1)
    size = torch.where(size > 0, size, torch.ones_like(size)).reshape(-1, *[1] * (probe.value.ndim - 1))
    own = _MOST_OF_OWN * probe.value.abs()  # a column of small numbers beside large ones would leave its range
    size = torch.where((own > 0) & (own < size), own, size)
    signs = torch.randint(0, 2, probe.value.shape, generator=generator).to(probe.value) * 2 - 1
    direction = signs * size
    expected = (host(probe.gradient) * host(direction)).reshape(rows, -1).sum(dim=1)
    slopes, differ = _compare(probe, direction, expected, _STEP)
    if not bool(differ.any()):
        return {}
    confirmed = torch.stack([_compare(probe, direction, expected, step)[1] for step in _OTHER_STEPS]).any(dim=0)
    wrong = (differ & confirmed).nonzero().flatten().tolist()
    return {row: Mismatch(float(slopes[row]), float(expected[row])) for row in wrong}


def _compare(probe: _Probe, direction: Tensor, expected: Tensor, length: float) -> tuple[Tensor, Tensor]:
    """Returns, [batch] each, the slopes (f(x + h d) - f(x - h d)) / 2h and whether they contradict ``expected``.

    Their uncertainty is the difference between the slopes ahead and behind, and the rounding of the targets.
    """
    step = length * torch.finfo(probe.dtype).eps ** (1 / 3)
    ahead, behind = (probe.shifted(sign * step * direction) for sign in (1, -1))
    slopes = (ahead - behind) / (2 * step)
    rounding = SUM.of(probe.dtype) * torch.stack([probe.here, ahead, behind]).abs().amax(dim=0) / step
    uncertainty = (ahead - 2 * probe.here + behind).abs() / step + rounding
    largest = torch.maximum(slopes.abs(), expected.abs())
    return slopes, (expected - slopes).abs() > torch.maximum(_UNCERTAINTIES * uncertainty, _NEGLIGIBLE * largest)


def _probes(problem: AttributionProblem) -> Iterator[_Probe]:
    """Yields a probe of each explained layer and floating input, or of the first embedding that has one: behind token
    ids, floating values begin there."""
    layers, floating = differentiated(problem)
    embeddings = [name for name, module in problem.model.tree.modules.items() if isinstance(module, nn.Embedding)]
    names = layers if layers or floating else embeddings
    runs: list[Run] = [partial(_at_output, problem, name, call=0) for name in names]
    runs += [partial(_at_inputs, problem, [name]) for name in floating]
    probes = (probe for run in runs if (probe := _probe(problem, run)))
    return probes if layers or floating else islice(probes, 1)


def _probe(problem: AttributionProblem, run: Run) -> _Probe | None:
    """Returns a probe of the first tensor that ``run`` changes and that has the rows.

    None if there is none, or the model rounds for training: its gradient is not that of its values.
    """
    leaves: list[Tensor] = []

    def leaf(tensor: Tensor) -> Tensor:
        leaves.append(tensor.detach().clone().requires_grad_())
        return leaves[-1].clone()  # the model may change it in place

    def targets(change: Change) -> Tensor:
        changed: list[Tensor] = []

        def change_first(tensor: Tensor) -> Tensor:
            if changed or tensor.shape[:1] != (problem.rows,):
                return tensor
            changed.append(tensor)
            return change(tensor)

        return problem.target.scalars(run(change_first))

    with torch.enable_grad():
        with Rounding() as rounding:
            scalars = targets(leaf)
        if rounding.seen or not leaves:
            return None
        gradient = gradients(scalars, leaves)[0] if scalars.requires_grad else None
    value = leaves[0].detach()
    coarsest = max({value.dtype, *operator_dtypes(problem)}, key=lambda dtype: torch.finfo(dtype).eps)
    gradient = torch.zeros_like(value) if gradient is None else gradient
    return _Probe(value, host(scalars.detach()), gradient, targets, coarsest)
