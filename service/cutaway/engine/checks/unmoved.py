"""Finds rows in which nothing moved: the target or a layer is the same in every pass, or the input is its baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from cutaway.contract import requests
from cutaway.contract.results import Cause
from cutaway.engine.model.failures import column_names
from cutaway.engine.passes.findings import Finding
from cutaway.engine.passes.pass_recorder import AttributionProblem
from cutaway.engine.planning.attribution_setup import moves_integers


def unchanged(rows: Tensor) -> Finding:
    """Returns the finding that the target of ``rows``, [batch] of booleans, is the same in every pass."""
    return Finding.of_rows(
        Cause.NOTHING_CHANGED,
        rows,
        lambda which: (
            f"the target of {which} is exactly the same in every pass: it does not depend on the replaced features, or "
            "their replacement equals them"
        ),
    )


def unmoved(problem: AttributionProblem, rows: Tensor) -> Finding:
    """Returns the finding that the layer returns the same in every pass of ``rows``, [batch] of booleans."""
    why = _why_unmoved(problem, rows)
    what = f"the layer {problem.layer!r} returns the same for the input and for the baseline"
    return Finding.of_rows(Cause.NOTHING_CHANGED, rows, lambda which: f"{what}, in {which}: {why}")


def _why_unmoved(problem: AttributionProblem, rows: Tensor) -> str:
    if not isinstance(problem.request, requests.Expectation):
        same = [name for name in problem.baselines if bool(_equals_baseline(problem, name)[rows].all())]
        if same:
            beside = ", and no other explained input reaches it" if len(same) < len(problem.explained) else ""
            return f"there, the baseline of {', '.join(map(repr, same))} equals the input{beside}; choose another one"
        if why := _partly_at_baseline(problem, rows):
            return why
    others = [name for name in problem.inputs if name not in problem.explained]
    also = f", such as {', '.join(map(repr, others[:3]))}" if others else ""
    integers = not all(problem.inputs[name].is_floating_point() for name in others)
    if integers and not moves_integers(problem.request):
        also += "; of these, only LayerIntegratedGradients and LayerDeepLift move integers"
    return f"the explained inputs ({', '.join(problem.explained)}) do not reach it; name in inputs those that do{also}"


def _partly_at_baseline(problem: AttributionProblem, rows: Tensor) -> str:
    """Returns why the layer is the same in ``rows`` although inputs reach it, as far as elements equal their baselines.

    If it moves in other rows, inputs do reach it. Else they may not: only categories, of which one number decides, are
    looked at.
    """
    reaches = not bool(rows.all())
    parts = [
        f"{equal} of {name!r}"
        for name in problem.baselines
        if (reaches or not problem.inputs[name].is_floating_point()) and (equal := _at_baseline(problem, name, rows))
    ]
    if not (parts or reaches):
        return ""
    if not parts:
        return (
            "it moves in other rows, so the inputs reach it; there, what it reads, or what is left of that, is the same"
        )
    equal = f"{', '.join(parts)} equal{'s' if len(parts) == 1 else ''} the baseline there"
    if reaches:
        return f"it moves in other rows, and {equal}; choose another baseline"
    return f"{equal}: if the layer reads only that, choose another baseline; else name in inputs those that reach it"


def _at_baseline(problem: AttributionProblem, name: str, rows: Tensor) -> str:
    """Returns, in words, the elements of an input that equal their baseline in each of ``rows``; ``""`` for none."""
    equal = problem.inputs[name] == problem.baselines[name]
    everywhere = equal.reshape(problem.rows, -1)[rows.to(equal.device)].all(dim=0).tolist()
    names = column_names(problem.model.inputs, name, len(everywhere))
    listed = [names[number] for number, is_equal in enumerate(everywhere) if is_equal] if names else []
    if not any(everywhere):
        return ""
    if 0 < len(listed) <= _LISTED:
        return ", ".join(map(repr, listed))
    return f"{sum(everywhere)} of {len(everywhere)} elements"


_LISTED = 4
"""The most columns that a reason names."""


def _equals_baseline(problem: AttributionProblem, name: str) -> Tensor:
    """Returns, [batch], whether an input equals its baseline."""
    equal = problem.inputs[name] == problem.baselines[name]
    return equal.reshape(problem.rows, -1).all(dim=1).cpu()


def baseline_is_input(problem: AttributionProblem) -> Finding | None:
    """Finds rows in which every explained input equals its baseline."""
    if not problem.baselines or isinstance(problem.request, requests.Expectation):
        return None
    same = torch.stack([_equals_baseline(problem, name) for name in problem.baselines]).all(dim=0)
    if not bool(same.any()):
        return None
    return Finding.of_rows(
        Cause.BASELINE_IS_INPUT,
        same,
        lambda which: (
            f"the baseline equals the input in {which}: there is no difference to explain; choose another baseline"
        ),
    )
