"""Likely causes of a bad verdict, from further passes that run only then."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import torch

from cutaway.contract.errors import InvalidArgument
from cutaway.contract.requests import (
    Deconvolution,
    GuidedBackprop,
    GuidedGradCam,
    NeuronConductance,
    NeuronDeconvolution,
    NeuronGuidedBackprop,
    PathAttribution,
)
from cutaway.contract.results import Cause
from cutaway.engine.checks.gradcheck import where_gradient_ends
from cutaway.engine.checks.model_properties import wrong_backward
from cutaway.engine.methods.paths import steps_to_try
from cutaway.engine.methods.spec import Method
from cutaway.engine.passes.findings import Finding
from cutaway.engine.passes.pass_recorder import AttributionProblem
from cutaway.engine.passes.reference_inputs import CompletenessSums, Evidence, MissingObservation, sums_between

_ENOUGH = 0.5
"""A number of steps that leaves less than this part of the convergence delta is enough to say that more steps help."""

_HELPS = 0.75
"""If none does, the best must leave less than this part.

Twice as many steps leave about a half of the error of a first-order rule, or of any rule where the target has kinks. Of
a jump's error they leave all.
"""


_RECTIFYING = (GuidedBackprop, Deconvolution, GuidedGradCam, NeuronGuidedBackprop, NeuronDeconvolution)
"""Methods that pass back only what is positive."""

_NOTHING_POSITIVE = (
    "the attribution is exactly zero everywhere, although the gradient is not: nothing positive, which is all that the "
    "method passes back, reaches the input; explain another target, or use a method that passes back the whole gradient"
)


def no_gradient(problem: AttributionProblem) -> Finding:
    """Returns where the backward path from the target ends."""
    if isinstance(problem.request, NeuronConductance):
        return Finding(Cause.NO_GRADIENT, _nothing_through_neuron(problem.request.neuron.module))
    try:
        last_unreached, first_reached = where_gradient_ends(problem)
    except InvalidArgument:
        last_unreached, first_reached = "", ""
    if last_unreached and first_reached:
        where = f"it reaches {first_reached!r} and not {last_unreached!r}"
    elif last_unreached:
        where = f"it does not even reach {last_unreached!r}, the last module"
    elif isinstance(problem.request, _RECTIFYING):
        return Finding(Cause.NO_GRADIENT, _NOTHING_POSITIVE)
    else:
        where = "it reaches every module"
    return Finding(
        Cause.NO_GRADIENT,
        f"the gradient is exactly zero everywhere ({where}): either the target does not depend on this input, or the "
        "path to it is cut (detach, round, argmax) or saturated",
    )


def _nothing_through_neuron(module: str) -> str:
    return (
        f"what flows through the neuron of {module!r} is exactly zero on the whole path: the target does not depend on "
        "this neuron there (is the ReLU behind it off?), or the neuron not on the input; choose another neuron"
    )


def incomplete(problem: AttributionProblem, method: Method, sums: CompletenessSums) -> Finding:
    """Returns why attributions do not sum to the target's change."""
    delta = f"the attributions miss {_largest(sums):.3g} of the target's change"
    path = isinstance(problem.request, PathAttribution)
    if path and (better := _better_steps(problem, method, sums)):
        return Finding(Cause.TOO_FEW_STEPS, f"{delta}, {better}")
    if method.runs_backward and (wrong := wrong_backward(problem)):
        return Finding(wrong.cause, f"{delta}: {wrong.reason}")
    if path:
        return Finding(Cause.UNKNOWN, f"{delta}, {_steps_in_vain(problem)}")
    return Finding(
        Cause.UNKNOWN,
        f"{delta}: is the target discontinuous, or does the method not know one of the model's operations?",
    )


def _steps_in_vain(problem: AttributionProblem) -> str:
    most = steps_to_try(cast(PathAttribution, problem.request).n_steps)[-1]
    return (
        f"and {most} steps leave most of it: does the target jump on the path, rise steeply or have kinks? request "
        "many more steps, or choose a nearer baseline"
    )


def above_bound(problem: AttributionProblem, sums: CompletenessSums, bound: float) -> Finding:
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
    for n_steps in steps_to_try(cast(PathAttribution, problem.request).n_steps):
        finer = replace(problem, request=replace(cast(PathAttribution, problem.request), n_steps=n_steps))
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
