"""An attribution beside its reference from raw hooks: a verdict that neither misses a fault nor invents one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cutaway.engine import causes, traits
from cutaway.engine.balance import Balance
from cutaway.engine.completeness import completeness
from cutaway.engine.distance import Distance, distance
from cutaway.engine.evidence import Evidence, Silent
from cutaway.engine.finding import Finding
from cutaway.engine.method import Method
from cutaway.engine.strayed import strayed
from cutaway.engine.witness import Pass, Question, Values, once
from cutaway.requests import POINTS, CheckMode, CheckRequest, Expectation, Point
from cutaway.results import Cause, Check, Verdict


def checks(
    question: Question,
    method: Method,
    values: Values,
    passes: Sequence[Pass],
    balance: Balance | None,
    request: CheckRequest,
) -> tuple[Check, ...]:
    """Everything that raw hooks can say about ``values``, the identity first; then whether they add up."""
    made = [_identity(question, method, values, passes, request)]
    if balance is not None and (method.adds_up(question.request) or method.conserves):
        made.append(completeness(question, method, balance, request, coarsest(question, values, passes)))
    return tuple(made)


def _identity(
    question: Question,
    method: Method,
    values: Values,
    passes: Sequence[Pass],
    request: CheckRequest,
    *,
    apart: bool = False,
) -> Check:
    dtype = coarsest(question, values, passes)
    tolerance = method.tolerances.of(dtype) if request.relative_tolerance is None else request.relative_tolerance
    blank = Check(
        f"Captum's {type(question.request).__name__} with {method.identity}",
        request.mode, 0.0, 0.0, 0.0, tolerance, Verdict.INCONCLUSIVE,
    )  # fmt: skip
    captums = request.mode is CheckMode.SAME_PASS
    why = strayed(question, method.points(question), passes) if captums or method.own is None else ""
    if why:
        return replace(blank, verdict=Verdict.DISAGREES, reason=why, cause=Cause.OTHER_PASSES)
    if captums and method.own is not None:
        return _identity_anew(question, method, values, request)
    calls = max(1, len(passes[-1].layer)) if passes else 1
    try:
        references = [method.reference(Evidence(question, passes, call)) for call in range(calls)]
    except Silent as silence:
        # Captum's own passes did not show everything (of a layer called twice, say): passes of our own do. Nor do these
        # where several points run in one and rows lie along another axis: then each point has a pass to itself.
        if captums:
            return _identity_anew(question, method, values, request)
        if not apart and method.own is None and method.together(question) > 1:
            return _identity_anew(question, method, values, request, apart=True)
        why = f"the raw hooks saw nothing to compare with: {silence}"
        return replace(blank, reason=why, cause=Cause.NOTHING_SEEN)
    far = max((distance(values, each, tolerance, dtype) for each in references), key=_worst)
    verdict, finding = _judge(question, method, passes, far, blank, calls)
    return replace(
        blank,
        max_absolute_error=far.absolute,
        max_relative_error=far.relative,
        cosine=far.cosine,
        verdict=verdict,
        reason=finding.reason if finding else "",
        cause=finding.cause if finding else None,
    )


def _identity_anew(
    question: Question, method: Method, values: Values, request: CheckRequest, *, apart: bool = False
) -> Check:
    own = replace(request, mode=CheckMode.INDEPENDENT)
    return _identity(question, method, values, method.passes(question, apart=apart), own, apart=apart)


def _worst(far: Distance) -> float:
    return far.relative if far.relative == far.relative else float("inf")  # NaN is as far as can be


def _judge(
    question: Question, method: Method, passes: Sequence[Pass], far: Distance, blank: Check, calls: int
) -> tuple[Verdict, Finding | None]:
    if far.relative <= blank.tolerance:  # False for NaN
        doubt = _doubt(question, method, passes)
        return (Verdict.AGREES if doubt is None else Verdict.INCONCLUSIVE), doubt
    if far.undefined or far.rounding:
        return Verdict.INCONCLUSIVE, _UNDEFINED if far.undefined else _ROUNDING
    if blank.mode is CheckMode.INDEPENDENT and (random := traits.random_forward(question)):
        return Verdict.INCONCLUSIVE, random
    return Verdict.DISAGREES, _fault(question, method, far, calls)


def _doubt(question: Question, method: Method, passes: Sequence[Pass]) -> Finding | None:
    """Why a match proves nothing."""
    if overlooked := method.overlooked(question):
        return Finding(overlooked.cause, f"{overlooked.reason}; for this input that makes no difference")
    if moot := method.moot(question):
        return moot
    if trait := _trait(question, method, passes):
        return trait
    if same := _baseline_is_input(question):
        return same
    if method.perturbs and _unmoved(question, passes):
        return _UNMOVED
    if method.runs_backward and _no_gradient(passes):
        return causes.no_gradient(question)
    return _saturated(question, passes) if method.runs_backward and method.own is None else None


def _trait(question: Question, method: Method, passes: Sequence[Pass]) -> Finding | None:
    """What makes any explanation of this model doubtful."""
    if random := traits.random_forward(question):
        return random
    alone = question.rows == 1 and len(passes) == 1
    if not alone and (coupled := traits.coupled_rows(question)):
        return coupled
    return traits.wrong_backward(question) if method.runs_backward else None


def _baseline_is_input(question: Question) -> Finding | None:
    """Rows that are compared with themselves."""
    pairs = [(question.inputs[name], start) for name, start in question.baselines.items()]
    if not pairs or isinstance(question.request, Expectation):
        return None
    same = torch.stack([(each == start).reshape(question.rows, -1).all(dim=1) for each, start in pairs]).all(dim=0)
    if not bool(same.any()):
        return None
    return Finding(
        Cause.BASELINE_IS_INPUT,
        f"the baseline is the input itself in {_rows(same)}: there is no difference to explain; choose another one",
    )


def _saturated(question: Question, passes: Sequence[Pass]) -> Finding | None:
    """Rows whose gradient is so small that the whole input, moved by its own size, would not move the target by more
    than a rounding, in any pass."""
    moved = torch.zeros(question.rows, dtype=torch.bool)
    for each in passes:
        for name, gradient in each.gradients.items():
            moved |= _moves(question, each, name, gradient)
    if bool(moved.all()) or not any(each.gradients for each in passes):
        return None
    return Finding(
        Cause.SATURATED,
        f"the target is saturated in {_rows(~moved)}: its gradient is smaller than what rounding does to it, and "
        "explains nothing; explain the logit before the softmax or sigmoid",
    )


def _moves(question: Question, each: Pass, name: str, gradient: Tensor) -> Tensor:
    rows = len(each.points[name])
    if rows % question.rows:
        return torch.ones(question.rows, dtype=torch.bool)
    sizes = each.points[name].double().abs().reshape(rows, -1)
    sizes = sizes.clamp(min=float(sizes.mean()) or 1.0)
    effect = (gradient.double().abs().reshape(rows, -1) * sizes).sum(dim=1)
    output = each.output.double().abs().reshape(rows, -1).amax(dim=1)
    moves = ~(effect <= torch.finfo(gradient.dtype).eps * output)  # NaN is not small
    return moves.reshape(-1, question.rows).any(dim=0)


def _rows(chosen: Tensor) -> str:
    numbers = chosen.nonzero().flatten().tolist()
    if len(numbers) == len(chosen):
        return "every row"
    return f"row{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:8]))}"


def _fault(question: Question, method: Method, far: Distance, calls: int) -> Finding:
    """Why the two do not match."""
    if overlooked := method.overlooked(question):
        return overlooked
    if calls > 1:
        return Finding(
            Cause.MODULE_REUSED,
            f"the layer was called {calls} times in one forward and Captum explains one call only; captures have every "
            "call",
        )
    if not math.isfinite(far.relative):
        return Finding(
            Cause.NOT_FINITE,
            "one of the two is not finite where the other is, or their shapes differ; do not rely on it",
        )
    return Finding(Cause.UNKNOWN, "the attribution is not what the raw hooks saw; do not rely on it")


_UNDEFINED = Finding(
    Cause.NOT_FINITE, "neither is a finite number in the same places: the gradient is not defined there"
)
_ROUNDING = Finding(
    Cause.CANCELLATION,
    "the terms of the attribution cancel: what is left of them is rounding, and explains nothing at this precision",
)
_UNMOVED = Finding(
    Cause.NOTHING_CHANGED,
    "the target is exactly the same in every pass: it does not depend on what was replaced, or what replaces it is "
    "what was there",
)


@once
def _of_parameters(question: Question) -> set[torch.dtype]:
    return {tensor.dtype for tensor in question.subject.module.parameters()}


_BY_PRECISION = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def coarsest(question: Question, values: Values, passes: Sequence[Pass]) -> torch.dtype:
    """The least precise data type that the attribution went through, as far as can be seen."""
    tensors = [*values.values(), *question.inputs.values()]
    for each in passes:
        tensors += [] if each.cotangent is None else [each.cotangent]
        tensors += [tensor for call in each.layer for point in POINTS for tensor in call.at(point).values()]
    found = {tensor.dtype for tensor in tensors} | _of_parameters(question)
    return next((dtype for dtype in _BY_PRECISION if dtype in found), torch.float32)


def _unmoved(question: Question, passes: Sequence[Pass]) -> bool:
    with torch.no_grad():
        seen = [question.chosen.of(each.output.to(question.subject.device)) for each in passes]
    return all(torch.equal(seen[0], each) for each in seen[1:])


def _no_gradient(passes: Sequence[Pass]) -> bool:
    seen = [gradient for each in passes for gradient in each.gradients.values()]
    for each in passes:
        for call in each.layer:
            seen.extend(call.at(Point.GRAD_OUTPUT).values())
    return not any(bool(gradient.any()) for gradient in seen)
