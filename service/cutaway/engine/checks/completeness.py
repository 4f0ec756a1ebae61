"""Checks whether attributions sum to the target's change from the baseline to the input."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple, TypeAlias, cast

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from cutaway.contract.errors import InvalidArgument
from cutaway.contract.requests import CheckRequest, PathAttribution, Point
from cutaway.contract.results import Cause, Check, RowCheck, Verdict
from cutaway.engine.checks.model_properties import wrong_backward
from cutaway.engine.hooks.recording import copy_to_host
from cutaway.engine.methods.paths import steps_to_try
from cutaway.engine.methods.spec import Method
from cutaway.engine.passes.findings import Finding
from cutaway.engine.passes.pass_recorder import AttributionProblem, CannotShare, Pass, RowRange, Values
from cutaway.engine.passes.reference_inputs import CompletenessSums, Evidence, MissingObservation, sums_between
from cutaway.engine.references.paths import target_at_layer_baseline
from cutaway.engine.runtime import numerics

_BYPASS = 1e-3
"""The part of the attributions that the target may change by while the layer is held constant.

A larger change shows a path from the input to the target that bypasses the layer.
"""

_CANCELLING = 0.1
"""The weight of the attributions' magnitudes beside the target's change, to which what is missing is compared."""


def check_completeness(
    problem: AttributionProblem, method: Method, sums: CompletenessSums, request: CheckRequest, dtype: torch.dtype
) -> Check:
    """Checks that the attributions sum to f(input) - f(baseline): Sundararajan et al. 2017 (arXiv:1703.01365),
    proposition 1. Relevance sums to f(input), except for the share of biases: Bach et al. 2015
    (doi:10.1371/journal.pone.0130140), equation 2."""
    sums = sums.of_batch() if problem.mixes_rows else sums
    missing = sums.delta.abs()
    # Where attributions cancel, a sum is only as exact as its terms are large.
    errors = missing / (sums.change.abs() + _CANCELLING * sums.mass).clamp(min=1e-30)
    relative = float(errors.max())
    tolerance = method.completeness_tolerances.of(dtype)
    verdict, finding = _judge(problem, method, relative <= tolerance, sums)
    bound = getattr(problem.request, "max_delta", None)
    complete = (errors <= tolerance) & (missing <= (torch.inf if bound is None else bound))
    by_row = verdict is Verdict.INCONCLUSIVE and finding is not None and finding.cause is not Cause.WRONG_BACKWARD
    rows = zip(errors.tolist(), complete.tolist()) if by_row else ()
    return Check(
        compared_sums(method),
        request.mode,
        max_absolute_error=float(missing.max()),
        max_relative_error=relative,
        cosine=numerics.cosine(sums.total, sums.change),
        tolerance=tolerance,
        verdict=verdict,
        reason=finding.reason if finding else "",
        cause=finding.cause if finding else None,
        rows=row_checks(
            problem, [(error, *((Verdict.AGREES, None) if agrees else (verdict, finding))) for error, agrees in rows]
        ),
    )


def row_checks(
    problem: AttributionProblem, rows: Sequence[tuple[float, Verdict, Finding | None]]
) -> tuple[RowCheck, ...]:
    """Returns the outcome of each row from its largest relative error, verdict and finding; empty if ``rows`` are not
    the rows of the batch."""
    if problem.rows == 1 or len(rows) != problem.rows:
        return ()
    return tuple(
        RowCheck(error, verdict, finding.reason if finding else "", finding.cause if finding else None)
        for error, verdict, finding in rows
    )


def compared_sums(method: Method) -> str:
    """Returns the text that says which sums the check compares."""
    if method.satisfies_conservation:
        return "the sum of the relevance with the target (conservation)"
    return "the sum of the attributions with the target's change from baseline to input (completeness)"


def _judge(
    problem: AttributionProblem, method: Method, complete: bool, sums: CompletenessSums
) -> tuple[Verdict, Finding | None]:
    if problem.edits_gradients and method.runs_backward:
        reason = "gradients are edited: their integral is no longer the target's change"
        return Verdict.NOT_APPLICABLE, Finding(Cause.WRONG_BACKWARD, reason)
    bound = getattr(problem.request, "max_delta", None)
    if bound is not None and not bool((sums.delta.abs() <= bound).all()):
        return Verdict.INCONCLUSIVE, _above_bound(problem, sums, bound)
    if complete:
        return Verdict.AGREES, None
    if bool(sums.delta.isnan().any()):
        reason = "the attributions of each row are unknown, or not a number"
        return Verdict.INCONCLUSIVE, Finding(Cause.NOT_FINITE, reason)
    if method.satisfies_conservation:
        return Verdict.NOT_APPLICABLE, Finding(Cause.NOT_MOVED, _absorbed(problem))
    still = sums.mass == 0
    if problem.layer and bool((still & (sums.change != 0)).any()) and bool(still.all()):
        reason = f"the layer {problem.layer!r} does not change, and the target does: nothing of the change is explained"
        return Verdict.INCONCLUSIVE, Finding(Cause.NOTHING_CHANGED, reason)
    if problem.layer and _bypassed(problem, sums):
        reason = f"paths from the input to the target lead around {problem.layer!r}, so its units need not sum to all"
        return Verdict.NOT_APPLICABLE, Finding(Cause.NOT_MOVED, reason)
    return Verdict.INCONCLUSIVE, _incomplete(problem, method, sums)


def _absorbed(problem: AttributionProblem) -> str:
    """Returns why relevance is lost or added on its way back."""
    biased = [
        name
        for name, module in problem.model.tree.modules.items()
        if isinstance(getattr(module, "bias", None), Tensor) or isinstance(module, _BatchNorm)
    ]
    if biased:
        return f"biases absorb relevance, in {', '.join(map(repr, biased[:3]))}: less arrives than was propagated"
    return "the rules do not propagate all relevance, or paths lead around the layer"


def _bypassed(problem: AttributionProblem, sums: CompletenessSums) -> bool:
    """Returns whether the target changes between baseline and input although the layer is held constant."""
    try:
        held = target_at_layer_baseline(problem)
    except (MissingObservation, InvalidArgument):
        return False
    change = (held - sums.at_baseline).abs()
    return bool((change > _BYPASS * torch.maximum(sums.mass, sums.change.abs())).any())


_ENOUGH = 0.5
"""A number of steps that leaves less than this part of the convergence delta is enough to say that more steps help."""

_HELPS = 0.75
"""If none does, the best must leave less than this part.

Twice as many steps leave about a half of the error of a first-order rule, or of any rule where the target has kinks. Of
a jump's error they leave all.
"""


def _incomplete(problem: AttributionProblem, method: Method, sums: CompletenessSums) -> Finding:
    """Returns why attributions do not sum to the target's change."""
    delta = f"the attributions miss {_largest(sums):.3g} of the target's change"
    path = isinstance(problem.request, PathAttribution)
    if path and (better := _better_steps(problem, method, sums)):
        return Finding(Cause.TOO_FEW_STEPS, f"{delta}, {better}")
    if method.runs_backward and (wrong := wrong_backward(problem)):
        return Finding(wrong.cause, f"{delta}: {wrong.reason}")
    if path:
        most = steps_to_try(cast(PathAttribution, problem.request).n_steps)[-1]
        return Finding(
            Cause.DISCONTINUOUS,
            f"{delta}, and {most} steps leave most of it: the target jumps on the path, or rises steeply (does the "
            "model round, compare or choose?); request many more steps, or choose a nearer baseline",
        )
    return Finding(
        Cause.UNKNOWN,
        f"{delta}: is the target discontinuous, or does the method not know one of the model's operations?",
    )


def _above_bound(problem: AttributionProblem, sums: CompletenessSums, bound: float) -> Finding:
    """Returns why even the largest number of steps misses the requested bound."""
    n_steps = cast(PathAttribution, problem.request).n_steps
    return Finding(
        Cause.TOO_FEW_STEPS,
        f"the attributions miss {_largest(sums):.3g} of the target's change with {n_steps} steps, the largest "
        f"number, and the request has max_delta={bound:g}: is the target discontinuous on the path? choose a nearer "
        "baseline",
    )


def _better_steps(problem: AttributionProblem, method: Method, sums: CompletenessSums) -> str:
    """Returns the number of steps that leaves a much smaller delta, in words; ``""`` if none does."""
    missing, best, left = _largest(sums), 0, math.inf
    request = cast(PathAttribution, problem.request)
    for n_steps in steps_to_try(request.n_steps):
        finer = replace(problem, request=replace(request, n_steps=n_steps))
        try:
            values = method.reference(Evidence(finer, method.passes(finer))).values
        except (MissingObservation, InvalidArgument):
            continue
        now = _largest(sums_between(finer, values, sums.at_input, sums.at_baseline))
        if now < left:
            best, left = n_steps, now
        if left < _ENOUGH * missing:
            break
    if left >= _HELPS * missing:
        return ""
    return (
        f"{left:.3g} with {best} steps: too few steps; request n_steps={best} or more, or the largest max_delta that "
        "is acceptable"
    )


def _largest(sums: CompletenessSums) -> float:
    return float(torch.nan_to_num(sums.delta).abs().max())


# Comparison of Captum's passes with those of the method: points, additional inputs and target.

_Pairs: TypeAlias = Iterable[tuple[Tensor, Tensor]]
"""Tensors that should be the same, ``[copies * batch, ...]`` each; to be read more than once."""


@dataclass(frozen=True)
class _Points:
    """The points that should be visited, divided into passes as those that were, and these.

    The rows are never all in memory twice, because a method may consist of thousands of passes.
    """

    name: str
    points: Sequence[Values]
    visited: Sequence[Tensor]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        further = (point[self.name] for point in self.points)
        ahead, rows = [self.points[0][self.name][:0]], 0
        for tensor in self.visited:
            while rows < len(tensor):
                ahead.append(next(further))
                rows += len(ahead[-1])
            joined = torch.cat(ahead).detach().cpu()
            yield joined[: len(tensor)], tensor
            ahead, rows = [joined[len(tensor) :]], rows - len(tensor)


def pass_mismatches(
    problem: AttributionProblem, points: Sequence[Values], passes: Sequence[Pass], parts: Sequence[RowRange]
) -> list[str]:
    """Returns for each of ``parts`` how ``passes`` differ from passes at ``points``, in words; ``""`` if they do not.

    Raises:
        CannotShare: ``passes`` have another number of rows than ``points``, and it is not known whose.
    """
    if other_number := _other_number(problem, points, passes):
        if len(parts) > 1:
            raise CannotShare
        return [other_number]
    mismatches = [""] * len(parts)
    for text, pairs in _comparisons(problem, points, passes):
        if any(numerics.largest_error(*pair) for pair in pairs):
            mismatches = [known or (text if _differ(pairs, rows) else "") for known, rows in zip(mismatches, parts)]
    return mismatches


def _other_number(problem: AttributionProblem, points: Sequence[Values], passes: Sequence[Pass]) -> str:
    for name in problem.explained:
        expected = sum(len(point[name]) for point in points)
        visited = sum(len(recorded.points[name]) for recorded in passes)
        if expected != visited:
            return f"Captum ran {visited} rows of {name!r} through the model; the method consists of {expected}"
    return ""


def _comparisons(
    problem: AttributionProblem, points: Sequence[Values], passes: Sequence[Pass]
) -> Iterator[tuple[str, _Pairs]]:
    """Yields what to say of a difference, and what is compared."""
    device = problem.model.device
    for name in problem.explained:
        text = f"Captum ran other values of {name!r} through the model than the method consists of"
        yield text, _Points(name, points, [recorded.points[name] for recorded in passes])
    for recorded in passes:
        times = len(next(iter(recorded.points.values()))) // problem.rows
        if not times:
            continue  # part of the batch: separate passes show a mismatch
        for tensor, visited in zip(problem.additional_inputs, recorded.additional_inputs):
            yield (
                "Captum changed an input that is not explained",
                [(torch.cat([tensor.detach().cpu()] * times), visited)],
            )
        if recorded.cotangent is not None:
            target = problem.target.for_rows(torch.arange(problem.rows, device=device).repeat(times))
            expected = copy_to_host(target.gradient_at(recorded.output.to(device)))
            yield "Captum differentiated another scalar than the target", [(expected, recorded.cotangent)]


def _differ(pairs: _Pairs, rows: RowRange) -> bool:
    """Returns whether ``rows`` differ in one of ``pairs`` by more than a rounding of their largest value."""
    error = scale = allowed = 0.0
    for pair in pairs:
        expected, visited = map(rows.of_copies, pair)
        error = max(error, numerics.largest_error(expected, visited))
        scale = max(scale, numerics.largest_magnitude(expected))
        allowed = numerics.VISITED_POINTS.of(expected.dtype) * (scale or 1.0) if expected.is_floating_point() else 0.0
    return error > allowed


# Rows whose gradient is zero, or too small to explain anything.


class GradientEffects(NamedTuple):
    """The effects of the target's gradients in each row, ``[batch]`` of booleans.

    Attributes:
        matter: whether in any pass the gradient times the magnitude of the input or layer output is more than a
            rounding of the target; True where no pass shows it.
        are_zero: whether the gradient is exactly zero in every pass.
    """

    matter: Tensor
    are_zero: Tensor


def gradient_effects(problem: AttributionProblem, passes: Sequence[Pass]) -> GradientEffects:
    """Returns the effects of the gradients in ``passes`` in each row."""
    seen = [(recorded, *pair) for recorded in passes for pair in _differentiated(problem, recorded)]
    matter = torch.full((problem.rows,), not seen)
    for at_last_point, (recorded, value, gradient) in product((True, False), seen):
        matter |= _gradient_matters(problem, recorded, value, gradient, at_last_point)
        if bool(matter.all()):
            return GradientEffects(matter, ~matter)
    are_zero = torch.stack([_is_zero(problem, recorded, gradient) for recorded, _, gradient in seen]).all(dim=0)
    return GradientEffects(matter, are_zero)


def saturated(problem: AttributionProblem, effects: GradientEffects) -> Finding | None:
    """Finds rows whose gradient is zero, or too small to explain anything."""
    matter, zero = effects
    if bool(matter.all()):
        return None
    what = f"the layer {problem.layer!r}" if problem.layer else "it"
    if bool((zero | matter).all()):
        return Finding(
            Cause.NO_GRADIENT,
            f"the gradient is exactly zero in {row_list(zero)}: near this input the target does not depend on {what} "
            "(are all ReLUs on the way off?); explain another target, or use a method that perturbs the input",
            row_numbers(zero),
        )
    return Finding(
        Cause.SATURATED,
        f"the target is saturated in {row_list(~matter)}: its gradient is smaller than the rounding errors of the "
        "target, and explains nothing; if a softmax or sigmoid follows a logit, explain the logit",
        row_numbers(~matter),
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
    """Returns whether axis 0 of a tensor is surely the batch: in a layer it may be that of a sequence."""
    rows, elsewhere = recorded.rows, bool(problem.layer) and not problem.is_batch_first
    return tensor.shape[:1] == (rows,) and rows % problem.rows == 0 and not elsewhere


def _gradient_matters(
    problem: AttributionProblem, recorded: Pass, value: Tensor, gradient: Tensor, at_last_point: bool
) -> Tensor:
    """Returns, [batch], whether a change of ``value`` by its own magnitude changes the target by more than a rounding.

    This is tested at the last point of a pass, which is quick, or at all of its points.
    """
    if not all(_shows_rows(problem, recorded, tensor) for tensor in (value, recorded.output)):
        return torch.ones(problem.rows, dtype=torch.bool)
    first = -problem.rows if at_last_point else 0
    of_rows = (tensor.reshape(recorded.rows, -1)[first:].double() for tensor in (value, gradient, recorded.output))
    values, gradients, outputs = of_rows
    sizes = values.abs()
    effect = (gradients.abs() * torch.maximum(sizes, _usual_sizes(problem, sizes))).sum(dim=1)
    output = torch.where(numerics.unmasked_in_rows(outputs), outputs, 0.0).abs().amax(dim=1)
    matters = ~(effect <= numerics.NO_EFFECT.of(gradient.dtype) * output)  # NaN is not small
    return matters.reshape(-1, problem.rows).any(dim=0)


def _usual_sizes(problem: AttributionProblem, sizes: Tensor) -> Tensor:
    """Returns the mean of each row's ``sizes`` at all points of a pass, ``[points * batch, 1]``; 1 in place of 0."""
    means = sizes.mean(dim=1).reshape(-1, problem.rows).mean(dim=0)
    return torch.where(means == 0, 1.0, means).repeat(len(sizes) // problem.rows).unsqueeze(1)


def _is_zero(problem: AttributionProblem, recorded: Pass, gradient: Tensor) -> Tensor:
    """Returns, [batch], whether a gradient is exactly zero in a row, at every point that the pass has for it."""
    if not _shows_rows(problem, recorded, gradient):
        return torch.zeros(problem.rows, dtype=torch.bool)
    return ~gradient.reshape(recorded.rows, -1).any(dim=1).reshape(-1, problem.rows).any(dim=0)


def row_numbers(chosen: Tensor) -> tuple[int, ...]:
    """Returns the numbers of the rows that are ``chosen``, [batch]."""
    return tuple(chosen.nonzero().flatten().tolist())


def row_list(chosen: Tensor) -> str:
    """Returns the same in words: ``row 3``, ``rows 0, 2 and 9 more``, ``every row``."""
    numbers = row_numbers(chosen)
    if len(numbers) == len(chosen):
        return "every row"
    more = f" and {len(numbers) - _LISTED} more" if len(numbers) > _LISTED else ""
    return f"row{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:_LISTED]))}{more}"


_LISTED = 8
