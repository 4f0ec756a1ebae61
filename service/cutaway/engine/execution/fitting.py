"""Attributions in passes that memory allows: fewer points or rows a pass, as long as one of them fits.

The sizes of passes follow from the memory of one row, measured once for each kind of inputs. It does not see all that
kernels take, so passes that run out of memory are halved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar, cast

import torch

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.requests import ExpectedGradient, PathAttribution, field_name
from cutaway.engine.methods.captum_call import method_of
from cutaway.engine.model.session import is_out_of_memory
from cutaway.engine.passes.pass_memory import LiveBytes
from cutaway.engine.passes.pass_recorder import AttributionProblem, ResolvedAttribution
from cutaway.engine.planning.plan import RequestPlan

T = TypeVar("T")

_OF_PASSES = 3
"""The divisor of a request's memory that gives what is alive in one pass: backward and workspaces take as much again,
and what hooks recorded needs some."""


_MORE = "or let the operator raise CUTAWAY_MEMORY_BYTES or CUTAWAY_REQUEST_MEMORY_BYTES"


def in_passes_that_fit(problem: AttributionProblem, compute: Callable[[AttributionProblem], T]) -> T:
    """Returns ``compute`` of ``problem`` with the largest passes that memory allows; raises where the smallest do not
    fit."""
    smaller: AttributionProblem | None = _fitted(problem)
    while smaller is not None:
        problem = smaller
        try:
            return compute(problem)
        except Exception as failure:
            smaller = with_smaller_passes(problem) if is_out_of_memory(failure) else None
            if smaller is None:
                raise
    raise AssertionError


def with_smaller_passes(problem: AttributionProblem) -> AttributionProblem | None:
    """Returns ``problem`` with half as many rows a pass; None where its passes cannot be divided."""
    least, now = _fewest_rows(problem), _rows_of_pass(problem)
    return replace(problem, most_rows=max(least, now // 2)) if now > least else None


def _rows_of_pass(problem: AttributionProblem) -> int:
    points = method_of(problem.request).points_per_pass(problem)
    if isinstance(problem.request, PathAttribution):
        points = min(points, problem.request.n_steps + 1)  # LayerConductance has one more
    return problem.most_rows or problem.rows * points


def _fewest_rows(problem: AttributionProblem) -> int:
    """Returns how many rows a pass of ``problem`` has at least: Captum's hooks on modules must see the whole batch."""
    if problem.is_row_specific:
        return _rows_of_pass(problem)
    if not (problem.module or method_of(problem.request).applies_to_modules):
        return 1
    return problem.rows if isinstance(problem.request, PathAttribution) else _rows_of_pass(problem)


def _fitted(problem: AttributionProblem) -> AttributionProblem:
    """Returns ``problem`` with passes whose rows fit, by the memory of one row."""
    allowed, least, now = problem.model.request_bytes, _fewest_rows(problem), _rows_of_pass(problem)
    if allowed is None or problem.most_rows or now <= least:
        return problem
    try:
        fitting = allowed // _OF_PASSES // max(1, _row_bytes(problem))
    except Exception as failure:
        if not is_out_of_memory(failure):
            raise
        fitting = 0
    return problem if now <= fitting else replace(problem, most_rows=max(least, fitting))


def _row_bytes(problem: AttributionProblem) -> int:
    """Returns the most bytes that are alive in a forward pass of the first row, with its graph where the method needs
    one; 0 if it fails."""
    model, inputs = problem.model, {name: tensor[:1] for name, tensor in problem.inputs.items()}
    backward = method_of(problem.request).runs_backward
    shapes = tuple((name, tensor.dtype, tensor.shape) for name, tensor in inputs.items())

    def measured() -> int:
        leaves = {name: x.clone().requires_grad_(backward and x.is_floating_point()) for name, x in inputs.items()}
        try:
            with model.unrecorded(), torch.set_grad_enabled(backward), LiveBytes() as live:
                live.ignore([*model.module.parameters(), *model.module.buffers(), *leaves.values()])
                model.run(leaves)
        except CutawayError:  # of a model that takes batches of one size
            return 0
        return cast(int, live.most)

    return model.remembered((_row_bytes, backward, shapes, model.kind_of(inputs)), measured)


# What to do about a request that does not fit.


def attribution_too_large(attribution: ResolvedAttribution, number: int) -> CutawayError:
    """Returns the error for attribution ``number`` of a request, whose smallest passes do not fit."""
    name, rows = field_name(type(attribution.request)), attribution.rows
    if isinstance(attribution.request, ExpectedGradient) and attribution.request.n_samples > 1:
        advice = "ask for fewer samples"
    elif rows > 1:
        advice = "send fewer rows"
    else:
        advice = "ask a method with forward passes only, such as Occlusion"
    what = f"{type(attribution.request).__name__} of {_plural(rows)} needs more memory than is free: {advice}, {_MORE}"
    return error(Reason.OUT_OF_MEMORY, what, f"attributions[{number}].{name}")


def request_too_large(plan: RequestPlan) -> CutawayError:
    """Returns the error for a request whose main pass does not fit."""
    advice = ["send fewer rows"] * (plan.rows > 1) + ["capture less"] * bool(plan.sites)
    what = f"the request, of {_plural(plan.rows)}, needs more memory than is free"
    return error(Reason.OUT_OF_MEMORY, f"{what}: {', '.join([*advice, _MORE]).removeprefix('or ')}")


def _plural(rows: int) -> str:
    return "one row" if rows == 1 else f"{rows} rows"
