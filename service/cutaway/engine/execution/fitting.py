"""Attributions in passes that memory allows: fewer points or rows a pass, as long as one of them fits.

The sizes of passes follow from the memory of one row, measured once for each kind of inputs. It does not see all that
kernels take, so passes that run out of memory are halved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias, cast

import torch
from torch import nn

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.requests import ExpectedGradient, PathAttribution, field_name
from cutaway.engine.execution.main_pass import MainPass
from cutaway.engine.execution.row_parts import Checked, in_parts, joined_parts, of_rows, rows_divide
from cutaway.engine.methods.captum_call import method_of
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.model.session import ran_out_of_memory
from cutaway.engine.passes.pass_memory import LiveBytes
from cutaway.engine.passes.pass_recorder import AttributionProblem, ResolvedAttribution
from cutaway.engine.planning.plan import RequestPlan

_OF_PASSES = 3
"""The divisor of a request's memory that gives what is alive in one pass: backward and workspaces take as much again,
and what hooks recorded needs some."""


_MORE = "or let the operator raise CUTAWAY_MEMORY_BYTES or CUTAWAY_REQUEST_MEMORY_BYTES"


Compute: TypeAlias = Callable[[AttributionProblem, MainPass], Checked]
"""Explains a problem, whose rows ran in a main pass, or attacks its inputs."""


def in_passes_that_fit(problem: AttributionProblem, main: MainPass, compute: Compute[Checked]) -> Checked:
    """Returns ``compute`` of ``problem`` with the largest passes that memory allows, in parts of its rows if all do not
    fit at one point; raises where the smallest do not fit."""
    try:
        return _in_smaller_passes(problem, main, compute)
    except Exception as failure:
        if not ran_out_of_memory(failure) or main.plan.parts or not rows_divide(problem):
            raise

    def explained(rows: range) -> tuple[int, Checked]:
        return len(rows), _in_smaller_passes(*of_rows(problem, main, rows), compute)

    return joined_parts(in_parts(problem.rows, explained))


def _in_smaller_passes(problem: AttributionProblem, main: MainPass, compute: Compute[Checked]) -> Checked:
    """Runs ``compute`` with passes that should fit by the memory of one row, and with smaller ones while memory runs
    out."""
    smaller: AttributionProblem | None = _fitted(problem)
    while smaller is not None:
        problem = smaller
        try:
            return compute(problem, main)
        except Exception as failure:
            smaller = with_smaller_passes(problem) if ran_out_of_memory(failure) else None
            if smaller is None:
                raise
    raise AssertionError


def with_smaller_passes(problem: AttributionProblem) -> AttributionProblem | None:
    """Returns ``problem`` with half as many rows a pass, or with one point of all rows; None where its passes cannot be
    divided, or its rows can be explained apart."""
    now = _rows_of_pass(problem)
    if not _divides(problem) or (now <= problem.rows and not _divides_points(problem)):
        return None
    return replace(problem, most_rows=max(problem.rows if now > problem.rows else 1, now // 2))


def _rows_of_pass(problem: AttributionProblem) -> int:
    points = method_of(problem.request).points_per_pass(problem)
    if isinstance(problem.request, PathAttribution):
        points = min(points, problem.request.n_steps + 1)  # LayerConductance has one more
    return problem.most_rows or problem.rows * points


def _reads_modules(problem: AttributionProblem) -> bool:
    """Returns whether Captum's hooks on modules must see the whole batch."""
    return bool(problem.module) or method_of(problem.request).applies_to_modules


def _divides(problem: AttributionProblem) -> bool:
    """Returns whether passes of several points can be divided into passes of one."""
    by_points = isinstance(problem.request, PathAttribution) or not _reads_modules(problem)
    return by_points and not problem.is_row_specific


def _divides_points(problem: AttributionProblem) -> bool:
    """Returns whether a pass of one point can be divided, and must be, because its rows cannot be explained apart."""
    return not _reads_modules(problem) and _rows_of_pass(problem) > 1 and not rows_divide(problem)


def _fitted(problem: AttributionProblem) -> AttributionProblem:
    """Returns ``problem`` with passes whose rows fit, by the memory of one row.

    Raises:
        MemoryError: fewer rows fit than it has, and they can be explained apart.
    """
    allowed, now = problem.model.request_bytes, _rows_of_pass(problem)
    if allowed is None or problem.most_rows or problem.is_row_specific or now < 2:
        return problem
    try:
        backward = method_of(problem.request).runs_backward
        fitting = allowed // _OF_PASSES // max(1, _row_bytes(problem.model, problem.inputs, backward))
    except Exception as failure:
        if not ran_out_of_memory(failure):
            raise
        fitting = 0
    if now <= fitting:
        return problem
    if fitting < problem.rows and rows_divide(problem):
        raise MemoryError(f"{fitting} of {problem.rows} rows fit")
    if not _divides(problem):
        return problem
    return replace(problem, most_rows=max(problem.rows if _reads_modules(problem) else 1, fitting))


def rows_that_fit(model: InspectedModel, inputs: Inputs, allowed: int) -> tuple[int, int]:
    """Returns how many rows like the first of ``inputs`` fit into ``allowed`` bytes, by the memory of that row: in a
    forward pass, and in a pass with gradients."""
    rows = (max(1, _row_bytes(model, inputs, backward)) for backward in (False, True))
    predicted, explained = (allowed // row for row in rows)
    return predicted, explained // _OF_PASSES


_OF_HESSIAN = 1 << 22
"""The bytes of a graph behind which products with a Hessian take no less time if it has more rows."""

_MOST_OF_HESSIAN = 256
"""The most rows of such a graph."""


def rows_of_hessian(model: InspectedModel, inputs: Inputs, fewest: int) -> int:
    """Returns of how many rows like the first of ``inputs`` a graph is made at once for products with the Hessian of
    their sum: of a small model many, since a product takes the same time."""
    _, fitting = rows_that_fit(model, inputs, _OF_HESSIAN)
    return min(max(fitting, fewest), _MOST_OF_HESSIAN)


def gradients_that_fit(model: InspectedModel, parameters: Sequence[nn.Parameter], rows: int, most: int) -> int:
    """Returns of how many rows, ``most`` at most, Captum may keep the gradients of ``parameters`` at once, beside those
    of a request's ``rows``, which it and the check keep until the end.

    Raises:
        ResourceExhausted: ``OUT_OF_MEMORY``: not of one.
    """
    of_row, size = sum(each.nbytes for each in parameters), sum(each.numel() for each in parameters)
    kept = rows * (of_row + 8 * size)  # the check's are float64
    fitting = most if model.request_bytes is None else (model.request_bytes - kept) // (2 * of_row)
    if fitting < 1:
        advice = f"name a smaller layer,{' send fewer rows,' * (rows > 1)} {_MORE}"
        what = f"gradients of {size:,} parameters, of {_plural(rows)} and a training row, need more memory than is free"
        raise error(Reason.OUT_OF_MEMORY, f"{what}: {advice}", "influence.layer")
    return min(most, fitting)


def _row_bytes(model: InspectedModel, inputs: Inputs, backward: bool) -> int:
    """Returns the most bytes that are alive in a forward pass of the first row, with its graph for ``backward``; 0 if
    it fails."""
    inputs = {name: tensor[:1] for name, tensor in inputs.items()}
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
