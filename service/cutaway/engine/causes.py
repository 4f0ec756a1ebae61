"""Likely causes, from further passes that are made only where something is wrong already."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch

from cutaway.engine.balance import Balance, balance_of
from cutaway.engine.evidence import Evidence, Silent
from cutaway.engine.finding import Finding
from cutaway.engine.method import Method
from cutaway.engine.places import where_cut
from cutaway.engine.traits import wrong_backward
from cutaway.engine.witness import Question
from cutaway.errors import InvalidArgument
from cutaway.requests import PathAttribution
from cutaway.results import Cause

HELPS = 0.5
"""More steps help where they leave less than this part of what was missing."""

FINEST = 128
"""The most steps that are tried besides twice those asked for."""


def no_gradient(question: Question) -> Finding:
    """Where the path from the target back is cut."""
    try:
        cut, reached = where_cut(question)
    except InvalidArgument:
        cut, reached = "", ""
    if cut and reached:
        where = f"it reaches {reached!r} and not {cut!r}"
    elif cut:
        where = f"it does not even reach {cut!r}, the last module"
    else:
        where = "it reaches every module"
    return Finding(
        Cause.NO_GRADIENT,
        f"the gradient is exactly zero everywhere ({where}): either the target does not depend on this input, or the "
        "path to it is cut (detach, round, argmax) or saturated",
    )


def missing(question: Question, method: Method, found: Balance) -> Finding:
    """Why attributions do not add up to the target's change."""
    much = f"the attributions miss {_most(found):.3g} of the target's change"
    finer = _finer(question, method, found) if isinstance(question.request, PathAttribution) else None
    if finer:
        return Finding(Cause.TOO_FEW_STEPS, f"{much}, {finer}")
    wrong = wrong_backward(question) if method.runs_backward else None
    if wrong:
        return Finding(wrong.cause, f"{much}: {wrong.reason}")
    steps = ", and more steps do not help" if isinstance(question.request, PathAttribution) else ""
    return Finding(
        Cause.UNKNOWN,
        f"{much}{steps}: is the target discontinuous, or does the method not know one of the model's operations?",
    )


def above_bound(question: Question, found: Balance, bound: float) -> Finding:
    """Why not even the most steps come as close as was asked for."""
    n_steps = cast(PathAttribution, question.request).n_steps
    return Finding(
        Cause.TOO_FEW_STEPS,
        f"the attributions miss {_most(found):.3g} of the target's change with {n_steps} steps, the most that are "
        f"taken, and max_delta={bound:g} was asked for: is the target discontinuous on the path? choose a nearer "
        "baseline",
    )


def _finer(question: Question, method: Method, found: Balance) -> str | None:
    """What more steps would leave, from raw hooks, if that is much less."""
    n_steps = cast(PathAttribution, question.request).n_steps
    for more in (2 * n_steps, 4 * n_steps, 8 * n_steps):
        if more > max(2 * n_steps, FINEST):
            break
        left = _left(question, method, found, more)
        if left is not None and left < HELPS * _most(found):
            return (
                f"{left:.3g} with {more} steps: too few steps; ask for n_steps={more} or more, or for the largest "
                "max_delta that will do"
            )
    return None


def _left(question: Question, method: Method, found: Balance, n_steps: int) -> float | None:
    finer = replace(question, request=replace(cast(PathAttribution, question.request), n_steps=n_steps))
    try:
        values = method.reference(Evidence(finer, method.passes(finer))).values
    except (Silent, InvalidArgument):
        return None
    return _most(balance_of(finer, values, found))


def _most(found: Balance) -> float:
    return float(torch.nan_to_num(found.delta).abs().max())
