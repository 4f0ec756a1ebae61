"""Whether attributions add up to the target's change between baseline and input."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from cutaway.engine import causes
from cutaway.engine.balance import Balance
from cutaway.engine.distance import cosine
from cutaway.engine.evidence import Silent
from cutaway.engine.finding import Finding
from cutaway.engine.method import Method
from cutaway.engine.references.paths import held_at_baseline
from cutaway.engine.witness import Question
from cutaway.errors import InvalidArgument
from cutaway.requests import CheckRequest
from cutaway.results import Cause, Check, Verdict

LEADS_AROUND = 1e-3
"""Where the layer is held still, a change of the target by this part of the attributions is another way's."""


def completeness(
    question: Question, method: Method, balance: Balance, request: CheckRequest, dtype: torch.dtype
) -> Check:
    """Sundararajan et al. 2017, proposition 1: the attributions sum to f(input) - f(baseline). Relevance sums to
    f(input), but for what biases take up: Bach et al. 2015, equation 2."""
    balance = balance.together() if question.mixes_rows else balance
    missing = balance.delta.abs()
    scale = torch.maximum(balance.mass, balance.change.abs()).clamp(min=1e-30)
    relative = float((missing / scale).max())
    tolerance = method.sums.of(dtype)
    verdict, finding = _summed(question, method, relative <= tolerance, balance)
    return Check(
        compared(method),
        request.mode,
        max_absolute_error=float(missing.max()),
        max_relative_error=relative,
        cosine=cosine(balance.total, balance.change),
        tolerance=tolerance,
        verdict=verdict,
        reason=finding.reason if finding else "",
        cause=finding.cause if finding else None,
    )


def compared(method: Method) -> str:
    """What is compared with what, in words."""
    return _CONSERVATION if method.conserves else _COMPLETENESS


_COMPLETENESS = "the sum of the attributions with the target's change from baseline to input (completeness)"
_CONSERVATION = "the sum of the relevance with the target (conservation)"


def _summed(question: Question, method: Method, complete: bool, found: Balance) -> tuple[Verdict, Finding | None]:
    if question.edits_gradients and method.runs_backward:
        why = "gradients are edited: what is integrated is no longer the target's change"
        return Verdict.NOT_APPLICABLE, Finding(Cause.WRONG_BACKWARD, why)
    bound = getattr(question.request, "max_delta", None)
    if bound is not None and not bool((found.delta.abs() <= bound).all()):
        return Verdict.INCONCLUSIVE, causes.above_bound(question, found, bound)
    if complete:
        return Verdict.AGREES, None
    if bool(found.delta.isnan().any()):
        why = "what is attributed to each row cannot be told, or is not a number"
        return Verdict.INCONCLUSIVE, Finding(Cause.NOT_FINITE, why)
    if method.conserves:
        return Verdict.NOT_APPLICABLE, Finding(Cause.NOT_MOVED, _taken_up(question))
    if question.layer and _leads_around(question, found):
        why = f"ways from the input to the target lead around {question.layer!r}, so its units need not add up to all"
        return Verdict.NOT_APPLICABLE, Finding(Cause.NOT_MOVED, why)
    return Verdict.INCONCLUSIVE, causes.missing(question, method, found)


def _taken_up(question: Question) -> str:
    """What takes relevance up, or hands on more than there is."""
    biased = [
        name
        for name, module in question.subject.tree.modules.items()
        if isinstance(getattr(module, "bias", None), Tensor) or isinstance(module, _BatchNorm)
    ]
    if biased:
        return f"biases take relevance up, in {', '.join(map(repr, biased[:3]))}: what arrives is not all that set out"
    return "the rules do not hand on as much as they are given, or ways lead around the layer"


def _leads_around(question: Question, found: Balance) -> bool:
    """Whether the target still changes on the way from the baseline to the input where the layer does not."""
    try:
        held = held_at_baseline(question)
    except (Silent, InvalidArgument):
        return False
    change = (held - found.at_baseline).abs()
    scale = torch.maximum(found.mass, found.change.abs())
    return bool((change > LEADS_AROUND * scale).any())
