"""Checks whether attributions sum to the target's change from the baseline to the input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from cutaway.contract.errors import InvalidArgument
from cutaway.contract.requests import CheckRequest, PathAttribution
from cutaway.contract.results import Cause, Check, RowCheck, Verdict
from cutaway.engine.checks.model_properties import wrong_backward
from cutaway.engine.checks.pass_summary import GradientEffects
from cutaway.engine.methods.gradients import steps_to_try
from cutaway.engine.methods.spec import Method
from cutaway.engine.passes.findings import Finding
from cutaway.engine.passes.pass_recorder import AttributionProblem
from cutaway.engine.passes.reference_inputs import (
    CompletenessSums,
    MissingObservation,
    operator_dtypes,
    sums_between,
)
from cutaway.engine.references.observation import Folding
from cutaway.engine.references.paths import target_at_layer_baseline
from cutaway.engine.runtime import numerics

_BYPASS = 1e-3
"""The part of the attributions that the target may change by while the layer is held constant.

A larger change shows a path from the input to the target that bypasses the layer.
"""

_CANCELLING = 0.1
"""The weight of the attributions' magnitudes beside the target's change, to which what is missing is compared."""

_SLACK = 0.1
"""The part of the tolerance that rounding errors of the target may use up beside it. Of larger ones, a gap that may be
theirs tells nothing."""

_EDITED = Finding(Cause.WRONG_BACKWARD, "gradients are edited: their integral is no longer the target's change")

_UNKNOWN = "the attributions are unknown, or not a number, in {}"


def check_completeness(
    problem: AttributionProblem,
    method: Method,
    sums: CompletenessSums,
    request: CheckRequest,
    dtype: torch.dtype,
    known: Finding | None = None,
) -> Check:
    """Checks that the attributions sum to f(input) - f(baseline): Sundararajan et al. 2017 (arXiv:1703.01365),
    proposition 1. Relevance sums to f(input), except for the share of biases: Bach et al. 2015
    (doi:10.1371/journal.pone.0130140), equation 2. ``known``: what makes any sum wrong, as found by another check."""
    rounding = numerics.TARGET.of(dtype) * torch.maximum(sums.at_input.abs(), sums.at_baseline.abs())
    if problem.mixes_rows:
        sums, rounding = sums.of_batch(), rounding.sum(dim=0, keepdim=True)
    tolerance = method.completeness_tolerances.of(dtype)
    missing = sums.delta.abs()
    errors, is_rounding = _compared(sums, rounding, tolerance)
    relative = float(errors.max())
    bound = getattr(problem.request, "max_delta", None)
    complete = (errors <= tolerance) & (missing <= (torch.inf if bound is None else bound))
    unknown = ~missing.isfinite()
    incomplete = (errors > tolerance) & ~unknown
    if known is None and bool(incomplete.any()) and bool(is_rounding[incomplete].all()):
        known = _rounded(rounding)
    judged = _judge(problem, method, not bool(incomplete.any()), _without(sums, unknown), known)
    undefined = Verdict.INCONCLUSIVE, Finding.of_rows(Cause.NOT_FINITE, unknown, _UNKNOWN.format)
    some_unknown = bool(unknown.any()) and judged[1] is not _EDITED
    verdict, finding = undefined if some_unknown else judged
    # A wrong backward pass concerns every row, and so does what makes the check inapplicable.
    apart = judged[0] is Verdict.INCONCLUSIVE and judged[1] is not None and judged[1].cause is not Cause.WRONG_BACKWARD
    rows = zip(errors.tolist(), complete.tolist(), unknown.tolist()) if apart or some_unknown else ()
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
            problem,
            [
                (error, *(undefined if no_number else (Verdict.AGREES, None) if agrees and apart else judged))
                for error, agrees, no_number in rows
            ],
        ),
    )


def _compared(sums: CompletenessSums, rounding: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Returns each row's error, and whether a gap may consist of nothing but ``rounding``, the target's own errors.

    A gap is measured without them where they are small beside the tolerance, or nothing is attributed.
    """
    missing = sums.delta.abs()
    # Where attributions cancel, a sum is only as exact as its terms are large.
    scale = (sums.change.abs() + _CANCELLING * sums.mass).clamp(min=1e-30)
    beyond = torch.where(missing.isfinite(), (missing - rounding).clamp(min=0.0), missing)
    is_rounding = beyond <= tolerance * scale
    is_small = (rounding <= _SLACK * tolerance * scale) | (sums.mass == 0)
    errors = missing / scale
    return torch.where((errors > tolerance) & is_rounding & is_small, beyond / scale, errors), is_rounding


def _without(sums: CompletenessSums, rows: Tensor) -> CompletenessSums:
    """Returns ``sums`` in which nothing is missing in ``rows``, and nothing follows from them."""
    at_baseline = sums.at_baseline.masked_fill(rows, 0.0)
    at_input, total = sums.at_input.masked_fill(rows, 0.0), sums.total.masked_fill(rows, 0.0)
    return CompletenessSums(at_input, at_baseline, total, sums.mass.masked_fill(rows, torch.inf))


def row_checks(
    problem: AttributionProblem, rows: Sequence[tuple[float, Verdict, Finding | None]]
) -> tuple[RowCheck, ...]:
    """Returns the outcome of each row from its largest relative error, verdict and finding; empty if ``rows`` are not
    the rows of the batch."""
    if problem.rows == 1 or len(rows) != problem.rows:
        return ()
    return tuple(
        RowCheck(error, verdict, finding.of_row(row) if finding else "", finding.cause if finding else None)
        for row, (error, verdict, finding) in enumerate(rows)
    )


def compared_sums(method: Method) -> str:
    """Returns the text that says which sums the check compares."""
    if method.satisfies_conservation:
        return "the sum of the relevance with the target (conservation)"
    return "the sum of the attributions with the target's change from baseline to input (completeness)"


def _judge(
    problem: AttributionProblem, method: Method, complete: bool, sums: CompletenessSums, known: Finding | None
) -> tuple[Verdict, Finding | None]:
    """Returns the verdict on the sums, and why it is no better. ``complete``: whether all finite sums match within the
    tolerance."""
    if problem.edits_gradients and method.runs_backward:
        return Verdict.NOT_APPLICABLE, _EDITED
    bound = getattr(problem.request, "max_delta", None)
    if bound is not None and not bool((sums.delta.abs() <= bound).all()):
        return Verdict.INCONCLUSIVE, _above_bound(problem, sums, bound)
    if complete:
        return Verdict.AGREES, None
    if method.satisfies_conservation:
        return Verdict.NOT_APPLICABLE, Finding(Cause.NOT_MOVED, _absorbed(problem))
    still = sums.mass == 0
    if problem.layer and bool((still & (sums.change != 0)).any()) and bool(still.all()):
        reason = f"the layer {problem.layer!r} does not change, and the target does: nothing of the change is explained"
        return Verdict.INCONCLUSIVE, Finding(Cause.NOTHING_CHANGED, reason)
    if known is not None:
        return Verdict.INCONCLUSIVE, Finding(known.cause, f"{_missing(sums)}: {known.reason}")
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
    delta = _missing(sums)
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


def _missing(sums: CompletenessSums) -> str:
    return f"the attributions miss {_largest(sums):.3g} of the target's change"


def _rounded(rounding: Tensor) -> Finding:
    """Returns why a gap tells nothing that is no larger than ``rounding``, the errors of the target."""
    return Finding(
        Cause.CANCELLATION,
        f"the target itself is rounded by up to {float(rounding.max()):.2g}, so that its change is known no better; "
        "load the model in float64, or explain a target without a large constant",
    )


def _above_bound(problem: AttributionProblem, sums: CompletenessSums, bound: float) -> Finding:
    """Returns why even the largest number of steps misses the requested bound."""
    n_steps = cast(PathAttribution, problem.request).n_steps
    return Finding(
        Cause.TOO_FEW_STEPS,
        f"{_missing(sums)} with {n_steps} steps, the largest "
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
            values = method.run_passes(finer, lambda: Folding(method.reference(finer, 0))).result().values  # noqa: B023
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
    return float(sums.delta.nan_to_num(0.0, 0.0, 0.0).abs().max())


# Rows whose gradient is zero, or too small to explain anything.


def saturated(problem: AttributionProblem, effects: GradientEffects) -> Finding | None:
    """Finds rows whose gradient is zero, or too small to explain anything."""
    matter, zero = effects
    if bool(matter.all()):
        return None
    what = f"the layer {problem.layer!r}" if problem.layer else "it"
    half = torch.float16 in operator_dtypes(problem)
    if bool((zero | matter).all()):
        return Finding.of_rows(
            Cause.NO_GRADIENT,
            zero,
            lambda rows: (
                f"the gradient is exactly zero in {rows}: near this input the target does not depend on {what} "
                "(are all ReLUs on the way off?); explain another target, or use a method that perturbs the input"
            ),
        )
    return Finding.of_rows(
        Cause.SATURATED,
        ~matter,
        lambda rows: (
            f"the target is saturated in {rows}: its gradient is smaller than the rounding errors of the target, and "
            "explains nothing; if a softmax or sigmoid follows a logit, explain the logit"
            + ("; float16 holds no gradient below 3e-6 precisely: load the model in another data type" if half else "")
        ),
    )
