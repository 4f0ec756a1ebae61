"""Likely causes of a bad verdict, from further passes that run only then."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch

from cutaway.engine.checks.localize import where_gradient_ends
from cutaway.engine.checks.model_properties import wrong_backward
from cutaway.engine.methods.spec import Method
from cutaway.engine.passes.convergence_delta import CompletenessSums, sums_between
from cutaway.engine.passes.finding import Finding
from cutaway.engine.passes.pass_recorder import AttributionProblem
from cutaway.engine.passes.reference_inputs import Evidence, MissingObservation
from cutaway.errors import InvalidArgument
from cutaway.requests import PathAttribution
from cutaway.results import Cause

_IMPROVEMENT = 0.5
"""More steps help if they leave less than this part of the convergence delta."""

_FINEST = 128
"""The largest number of steps to try, except for twice the requested number."""


def no_gradient(problem: AttributionProblem) -> Finding:
    """Returns where the backward path from the target ends."""
    try:
        last_unreached, first_reached = where_gradient_ends(problem)
    except InvalidArgument:
        last_unreached, first_reached = "", ""
    if last_unreached and first_reached:
        where = f"it reaches {first_reached!r} and not {last_unreached!r}"
    elif last_unreached:
        where = f"it does not even reach {last_unreached!r}, the last module"
    else:
        where = "it reaches every module"
    return Finding(
        Cause.NO_GRADIENT,
        f"the gradient is exactly zero everywhere ({where}): either the target does not depend on this input, or the "
        "path to it is cut (detach, round, argmax) or saturated",
    )


def incomplete(problem: AttributionProblem, method: Method, sums: CompletenessSums) -> Finding:
    """Returns why attributions do not sum to the target's change."""
    delta = f"the attributions miss {_largest(sums):.3g} of the target's change"
    path = isinstance(problem.request, PathAttribution)
    if path and (better := _better_steps(problem, method, sums)):
        return Finding(Cause.TOO_FEW_STEPS, f"{delta}, {better}")
    if method.runs_backward and (wrong := wrong_backward(problem)):
        return Finding(wrong.cause, f"{delta}: {wrong.reason}")
    return Finding(
        Cause.UNKNOWN,
        f"{delta}{_steps_in_vain(problem) if path else ''}: is the target discontinuous, or does the method not "
        "know one of the model's operations?",
    )


def _steps_in_vain(problem: AttributionProblem) -> str:
    most = steps_to_try(cast(PathAttribution, problem.request).n_steps)[-1]
    return f", and {most} steps leave more than half of it"


def above_bound(problem: AttributionProblem, sums: CompletenessSums, bound: float) -> Finding:
    """Returns why even the largest number of steps misses the requested bound."""
    n_steps = cast(PathAttribution, problem.request).n_steps
    return Finding(
        Cause.TOO_FEW_STEPS,
        f"the attributions miss {_largest(sums):.3g} of the target's change with {n_steps} steps, the largest "
        f"number, and the request has max_delta={bound:g}: is the target discontinuous on the path? choose a nearer "
        "baseline",
    )


def steps_to_try(n_steps: int) -> list[int]:
    """Returns the numbers of steps for which `incomplete` computes the convergence delta, at most."""
    return [more for more in (2 * n_steps, 4 * n_steps, 8 * n_steps) if more <= max(2 * n_steps, _FINEST)]


def _better_steps(problem: AttributionProblem, method: Method, sums: CompletenessSums) -> str:
    """Returns the number of steps that leaves a much smaller delta, in words; ``""`` if none does."""
    for n_steps in steps_to_try(cast(PathAttribution, problem.request).n_steps):
        finer = replace(problem, request=replace(cast(PathAttribution, problem.request), n_steps=n_steps))
        try:
            values = method.reference(Evidence(finer, method.passes(finer))).values
        except (MissingObservation, InvalidArgument):
            continue
        left = _largest(sums_between(finer, values, sums.at_input, sums.at_baseline))
        if left < _IMPROVEMENT * _largest(sums):
            return (
                f"{left:.3g} with {n_steps} steps: too few steps; request n_steps={n_steps} or more, or the largest "
                "max_delta that is acceptable"
            )
    return ""


def _largest(sums: CompletenessSums) -> float:
    return float(torch.nan_to_num(sums.delta).abs().max())
