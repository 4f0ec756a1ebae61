"""Checks whether attributions sum to the target's change from the baseline to the input."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from cutaway.contract.errors import InvalidArgument
from cutaway.contract.requests import CheckRequest, PathAttribution
from cutaway.contract.results import Cause, Check, RowCheck, Verdict
from cutaway.contract.values import cached_property
from cutaway.engine.checks.model_properties import wrong_backward
from cutaway.engine.checks.pass_summary import GradientEffects
from cutaway.engine.methods.gradients import steps_to_try
from cutaway.engine.methods.spec import Method
from cutaway.engine.passes.findings import THIS_ROW, Finding
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
    known: Sequence[Finding | None],
) -> Check:
    """Checks that the attributions sum to f(input) - f(baseline): Sundararajan et al. 2017 (arXiv:1703.01365),
    proposition 1. Relevance sums to f(input), except for the share of biases: Bach et al. 2015
    (doi:10.1371/journal.pone.0130140), equation 2. ``known``: what makes the sum of each row wrong, as found by another
    check."""
    rounding = numerics.TARGET.of(dtype) * torch.maximum(sums.at_input.abs(), sums.at_baseline.abs())
    if problem.mixes_rows:
        sums, rounding = sums.of_batch(), rounding.sum(dim=0, keepdim=True)
    tolerance = method.completeness_tolerances.of(dtype)
    missing = sums.delta.abs()
    errors, is_rounding = _compared(sums, rounding, tolerance)
    gaps = _Gaps(problem, method, sums, known, rounding, errors <= tolerance, is_rounding)
    outcomes = gaps.outcomes()
    sizes = missing.nan_to_num(math.inf).tolist()
    worst = min(range(len(outcomes)), key=lambda row: (_WORST.index(outcomes[row][0]), -sizes[row]))
    verdict, finding = gaps.of_batch(*outcomes[worst])
    if finding and finding.cause is Cause.NOT_FINITE:
        finding = Finding.of_rows(Cause.NOT_FINITE, ~missing.isfinite(), _UNKNOWN.format)
    differ = verdict is Verdict.INCONCLUSIVE or len({outcome for outcome, _ in outcomes}) > 1
    rows = zip(errors.tolist(), outcomes) if differ else ()
    return Check(
        compared_sums(method),
        request.mode,
        max_absolute_error=float(missing.max()),
        max_relative_error=float(errors.max()),
        cosine=numerics.cosine(sums.total, sums.change),
        tolerance=tolerance,
        verdict=verdict,
        reason=finding.reason if finding else "",
        cause=finding.cause if finding else None,
        rows=row_checks(problem, [(error, *outcome) for error, outcome in rows]),
    )


_WORST = (Verdict.INCONCLUSIVE, Verdict.NOT_APPLICABLE, Verdict.AGREES)
"""The verdicts on sums in the order in which they are that of the batch."""


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


_ENOUGH = 0.5
"""A number of steps that leaves less than this part of the convergence delta is enough to say that more steps help."""

_HELPS = 0.75
"""If none does, the best must leave less than this part.

Twice as many steps leave about a half of the error of a first-order rule, or of any rule where the target has kinks. Of
a jump's error they leave all.
"""


@dataclass(frozen=True)
class _Gaps:
    """Judges what attributions miss of the target's change, and why, each row by itself.

    Attributes:
        problem: the problem.
        method: its method.
        sums: both sides of completeness.
        known: what makes the sum of each row wrong, as found by another check.
        rounding: the rounding errors of the target.
        complete: whether the sum of each row matches within the tolerance.
        is_rounding: whether the gap of each row may consist of rounding errors of the target.
    """

    problem: AttributionProblem
    method: Method
    sums: CompletenessSums
    known: Sequence[Finding | None]
    rounding: Tensor
    complete: Tensor
    is_rounding: Tensor

    def outcomes(self) -> list[tuple[Verdict, Finding | None]]:
        """Returns the verdict on the sum of each row, and why it is no better."""
        rows = len(self.sums.total)
        if self.problem.edits_gradients and self.method.runs_backward:
            return [(Verdict.NOT_APPLICABLE, _EDITED)] * rows
        if bool(self.complete.all()) and getattr(self.problem.request, "max_delta", None) is None:
            return [(Verdict.AGREES, None)] * rows
        return [self._judge(row) for row in range(rows)]

    def of_batch(self, verdict: Verdict, finding: Finding | None) -> tuple[Verdict, Finding | None]:
        """Returns the outcome of the batch from that of its worst row: so many steps help that they do in all rows."""
        is_told = finding is not None and finding.cause is Cause.TOO_FEW_STEPS and "_finer" in vars(self)
        bounded = getattr(self.problem.request, "max_delta", None) is not None
        if finding is None or not is_told or bounded or not (better := self._better_steps(-1)):
            return verdict, finding
        return verdict, Finding(finding.cause, f"{_misses(float(self._searched_gaps[-1]))}, {better}")

    def _judge(self, row: int) -> tuple[Verdict, Finding | None]:
        missing = float(self._missing[row])
        bound = getattr(self.problem.request, "max_delta", None)
        if not math.isfinite(missing):
            return Verdict.INCONCLUSIVE, Finding(Cause.NOT_FINITE, _UNKNOWN.format(THIS_ROW))
        if bound is not None and missing > bound:
            return Verdict.INCONCLUSIVE, _above_bound(self.problem, missing, bound)
        if bool(self.complete[row]):
            return Verdict.AGREES, None
        if self.method.satisfies_conservation:
            return Verdict.NOT_APPLICABLE, self._absorbed
        layer = self.problem.layer
        if layer and not bool(self.sums.mass[row]) and bool(self.sums.change[row]):
            reason = f"the layer {layer!r} does not change, and the target does: nothing of the change is explained"
            return Verdict.INCONCLUSIVE, Finding(Cause.NOTHING_CHANGED, reason)
        known = self.known[row] if row < len(self.known) else None
        if known is None and bool(self.is_rounding[row]):
            known = _rounded(float(self.rounding[row]))
        if known is not None:
            return Verdict.INCONCLUSIVE, Finding(known.cause, f"{_misses(missing)}: {known.reason}")
        if layer and bool(self._bypassed[row]):
            reason = f"paths from the input to the target lead around {layer!r}, so its units need not sum to all"
            return Verdict.NOT_APPLICABLE, Finding(Cause.NOT_MOVED, reason)
        return Verdict.INCONCLUSIVE, self._incomplete(row)

    @cached_property
    def _missing(self) -> Tensor:
        return self.sums.delta.abs()

    @cached_property
    def _absorbed(self) -> Finding:
        return Finding(Cause.NOT_MOVED, _absorbed(self.problem))

    @cached_property
    def _bypassed(self) -> Tensor:
        """Whether the target of each row changes between baseline and input although the layer is held constant."""
        sums = self.sums
        try:
            held = target_at_layer_baseline(self.problem)
        except (MissingObservation, InvalidArgument):
            return torch.zeros_like(self.complete)
        if self.problem.mixes_rows:
            held = held.sum(dim=0, keepdim=True)
        change = (held - sums.at_baseline).abs()
        return change > _BYPASS * torch.maximum(sums.mass, sums.change.abs())

    def _incomplete(self, row: int) -> Finding:
        """Returns why the attributions of a row do not sum to the target's change."""
        problem, delta = self.problem, _misses(float(self._missing[row]))
        path = isinstance(problem.request, PathAttribution)
        if path and (better := self._better_steps(row)):
            return Finding(Cause.TOO_FEW_STEPS, f"{delta}, {better}")
        if self.method.runs_backward and (wrong := self._wrong_backward):
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

    @cached_property
    def _wrong_backward(self) -> Finding | None:
        return wrong_backward(self.problem)

    def _better_steps(self, row: int) -> str:
        """Returns the number of steps that leaves a much smaller gap of a row, in words; ``""`` if none does. Row -1 is
        the batch, of which the largest gap counts."""
        steps, left = self._finer
        if float(left[row]) >= _HELPS * float(self._searched_gaps[row]):
            return ""
        n_steps = int(steps[row])
        return (
            f"{float(left[row]):.3g} with {n_steps} steps: too few steps; request n_steps={n_steps} or more, or the "
            "largest max_delta that is acceptable"
        )

    def _with_largest(self, gaps: Tensor) -> Tensor:
        """Returns the gaps that more steps may close, and the largest behind them, ``[batch + 1]``."""
        told = gaps.nan_to_num(0.0, 0.0, 0.0)
        if self.problem.layer:
            told = told.masked_fill(self._bypassed, 0.0)
        return torch.cat([told, told.max().reshape(1)])

    @cached_property
    def _searched_gaps(self) -> Tensor:
        return self._with_largest(self._missing)

    @cached_property
    def _finer(self) -> tuple[Tensor, Tensor]:
        """The number of steps that leaves least of each row's gap, and of the largest, and what is left; no more steps
        than are enough."""
        problem, method, sums = self.problem, self.method, self.sums
        missing = self._searched_gaps
        steps, left = torch.zeros(len(missing), dtype=torch.int64), torch.full_like(missing, math.inf)
        searched = torch.cat([~self.complete, torch.ones(1, dtype=torch.bool)]) & (missing > 0)
        request = cast(PathAttribution, problem.request)
        for n_steps in steps_to_try(request.n_steps):
            finer = replace(problem, request=replace(request, n_steps=n_steps))
            try:
                values = method.run_passes(finer, lambda: Folding(method.reference(finer, 0))).result().values  # noqa: B023
            except (MissingObservation, InvalidArgument):
                continue
            found = sums_between(finer, values, sums.at_input, sums.at_baseline)
            now = self._with_largest((found.of_batch() if problem.mixes_rows else found).delta.abs())
            is_better = searched & (now < left)
            steps, left = steps.masked_fill(is_better, n_steps), torch.where(is_better, now, left)
            searched &= left >= _ENOUGH * missing
            if not bool(searched.any()):
                break
        return steps, left


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


def _misses(missing: float) -> str:
    return f"the attributions miss {missing:.3g} of the target's change"


def _rounded(rounding: float) -> Finding:
    """Returns why a gap tells nothing that is no larger than ``rounding``, the errors of the target."""
    return Finding(
        Cause.CANCELLATION,
        f"the target itself is rounded by up to {rounding:.2g}, so that its change is known no better; "
        "load the model in float64, or explain a target without a large constant",
    )


def _above_bound(problem: AttributionProblem, missing: float, bound: float) -> Finding:
    """Returns why even the largest number of steps misses the requested bound."""
    n_steps = cast(PathAttribution, problem.request).n_steps
    return Finding(
        Cause.TOO_FEW_STEPS,
        f"{_misses(missing)} with {n_steps} steps, the largest "
        f"number, and the request has max_delta={bound:g}: is the target discontinuous on the path? choose a nearer "
        "baseline",
    )


# What the comparison with raw hooks says of the sums, and these of it.

_SPOILS_SUMS = (Cause.RANDOM_FORWARD, Cause.ROWS_COUPLED, Cause.MODULE_REUSED, Cause.QUADRATURE_WEIGHTS)
"""Causes for which no number of steps helps, and no jump of the target is to blame."""

_NO_RULE = Finding(
    Cause.FUNCTIONAL_NONLINEARITY,
    "the attributions do not sum to the target's change, as they must if the method had a rule for each operation: "
    "some operation is neither linear nor a nonlinearity that has one (a product of activations, a normalisation, a "
    "function of the model's own), and its plain gradient was used",
)
_UNPROVEN = {
    Cause.UNKNOWN: _NO_RULE,  # neither Captum nor the reference has a rule for some operation
    Cause.CANCELLATION: Finding(
        Cause.CANCELLATION,
        "the attributions must sum to the target's change if the method has a rule for each operation, and rounding "
        "errors of the target hide whether they do; load the model in float64, or explain a target without a large "
        "constant",
    ),
}
"""Why an agreement proves no rules, by the cause for which the sums do not."""

_Outcome = TypeVar("_Outcome", Check, RowCheck)


def spoils_sum(row: RowCheck) -> Finding | None:
    """Returns what makes the sum of a row wrong, whatever it is, by its comparison with raw hooks; None if nothing."""
    return Finding(row.cause, row.reason) if row.cause in _SPOILS_SUMS else None


def with_unproven(identity: Check, summed: Check, rows_of: Callable[[Check], Sequence[RowCheck]]) -> Check:
    """Returns ``identity`` without AGREES in the rows whose sums do not prove that each operation has a rule.

    ``rows_of`` returns the outcome of each row of a check.
    """
    unproven = [summed.of_row(row).cause in _UNPROVEN for row in range(len(summed.rows) or 1)]
    if not any(unproven):
        return identity
    rows = [
        _unproven(row, summed.of_row(number)) if is_unproven else row
        for number, (row, is_unproven) in enumerate(zip(rows_of(identity), unproven))
    ]
    whole = _unproven(identity, summed if summed.cause in _UNPROVEN else summed.of_row(unproven.index(True)))
    return replace(whole, rows=tuple(rows) if summed.rows else identity.rows)


def _unproven(outcome: _Outcome, summed: Check | RowCheck) -> _Outcome:
    if outcome.verdict is not Verdict.AGREES or summed.cause is None:
        return outcome
    verdict, finding = Verdict.INCONCLUSIVE, _UNPROVEN[summed.cause]
    return replace(outcome, verdict=verdict, reason=finding.reason, cause=finding.cause)


def with_causes_of(identity: Check, summed: Check) -> Check:
    """Returns ``summed`` with the cause of ``identity``, if any, in each row whose sum misses for none of its own."""
    rows = tuple(_with_cause(row, identity.of_row(number)) for number, row in enumerate(summed.rows))
    if summed.cause is not Cause.UNKNOWN:
        return replace(summed, rows=rows)
    told = zip(rows, summed.rows)
    found: Check | RowCheck = next((own for own, row in told if row.reason == summed.reason), identity)
    return replace(_with_cause(summed, found), rows=rows)


def _with_cause(summed: _Outcome, found: Check | RowCheck) -> _Outcome:
    return replace(summed, cause=found.cause or Cause.UNKNOWN) if summed.cause is Cause.UNKNOWN else summed


# Rows whose gradient is zero, or too small to explain anything.


def saturated(problem: AttributionProblem, effects: GradientEffects) -> Iterator[Finding]:
    """Finds rows whose gradient is zero, or too small to explain anything."""
    zero, small = effects.are_zero & ~effects.matter, ~effects.are_zero & ~effects.matter
    what = f"the layer {problem.layer!r}" if problem.layer else "it"
    if bool(small.any()):
        half = torch.float16 in operator_dtypes(problem)
        yield Finding.of_rows(
            Cause.SATURATED,
            small,
            lambda rows: (
                f"the target is saturated in {rows}: its gradient is smaller than the rounding errors of the target, "
                "and explains nothing; if a softmax or sigmoid follows a logit, explain the logit"
                + (
                    "; float16 holds no gradient below 3e-6 precisely: load the model in another data type"
                    if half
                    else ""
                )
            ),
        )
    if bool(zero.any()):
        yield Finding.of_rows(
            Cause.NO_GRADIENT,
            zero,
            lambda rows: (
                f"the gradient is exactly zero in {rows}: near this input the target does not depend on {what} "
                "(are all ReLUs on the way off?); explain another target, or use a method that perturbs the input"
            ),
        )
