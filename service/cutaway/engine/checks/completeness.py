"""Checks whether attributions sum to the target's change from the baseline to the input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from cutaway.contract.errors import InvalidArgument
from cutaway.contract.requests import CheckRequest
from cutaway.contract.results import Cause, Check, RowCheck, Verdict
from cutaway.engine.checks import diagnosis
from cutaway.engine.methods.spec import Method
from cutaway.engine.passes.convergence_delta import CompletenessSums
from cutaway.engine.passes.findings import Finding
from cutaway.engine.passes.pass_recorder import AttributionProblem
from cutaway.engine.passes.reference_inputs import MissingObservation
from cutaway.engine.references.paths import target_at_layer_baseline
from cutaway.engine.runtime.numerics import cosine

_BYPASS = 1e-3
"""If the target changes by more than this part of the attributions while the layer is held constant, another path from
the input to the target bypasses the layer."""

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
        cosine=cosine(sums.total, sums.change),
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
        return Verdict.INCONCLUSIVE, diagnosis.above_bound(problem, sums, bound)
    if complete:
        return Verdict.AGREES, None
    if bool(sums.delta.isnan().any()):
        reason = "the attributions of each row are unknown, or not a number"
        return Verdict.INCONCLUSIVE, Finding(Cause.NOT_FINITE, reason)
    if method.satisfies_conservation:
        return Verdict.NOT_APPLICABLE, Finding(Cause.NOT_MOVED, _absorbed(problem))
    if problem.layer and _bypassed(problem, sums):
        reason = f"paths from the input to the target lead around {problem.layer!r}, so its units need not sum to all"
        return Verdict.NOT_APPLICABLE, Finding(Cause.NOT_MOVED, reason)
    return Verdict.INCONCLUSIVE, diagnosis.incomplete(problem, method, sums)


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
