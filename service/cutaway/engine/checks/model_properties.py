"""Properties of a model that make every attribution doubtful: random forward, dependent rows, wrong backward.

Each is tested once, by passes on the first inputs of a kind, and cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from cutaway.engine.checks.gradcheck import wrong_slope
from cutaway.engine.checks.localize import custom_functions, first_difference
from cutaway.engine.checks.row_independence import another_row, input_kind
from cutaway.engine.model.inspected_model import Inputs, InspectedModel, Outputs
from cutaway.engine.passes.finding import Finding
from cutaway.engine.passes.pass_recorder import AttributionProblem
from cutaway.engine.passes.repeated_batch import concatenated
from cutaway.engine.runtime.numerics import DOUBLED_BATCH, REPEATED, SAME_SHAPES, Tolerances, close
from cutaway.errors import InvalidArgument
from cutaway.results import Cause


def random_forward(problem: AttributionProblem) -> Finding | None:
    """Returns whether, and where, two passes on the same inputs differ."""
    return _cached(problem, _random_forward)


def dependent_rows(problem: AttributionProblem) -> Finding | None:
    """Returns whether, and where, a row's outputs depend on the explained inputs of another row.

    This is less than `row_independence.rows_independent` proves before requests share a batch, and avoids false alarms:
    it uses the request's own rows, and allows inputs that are not explained, such as lengths, to affect all rows.
    """
    return _cached(problem, _dependent_rows)


def wrong_backward(problem: AttributionProblem) -> Finding | None:
    """Returns whether the backward pass computes something else than the derivative, and the suspected places."""
    return _cached(problem, _wrong_backward)


def _cached(problem: AttributionProblem, test: Callable[[AttributionProblem], Finding | None]) -> Finding | None:
    if problem.edits:  # an edited model is another model
        return None
    model, kind = problem.model, input_kind(problem.inputs)
    key = (test, problem.explained, problem.target.source, problem.rows > 1, kind, *_hooked(model))
    if key not in model.properties:
        # These passes belong to no request: they are not counted, and do not advance the random number generators.
        with model.passes.uncounted(), model.kept_rng_state():
            try:
                model.properties[key] = test(problem)
            except InvalidArgument:  # the request's own pass reports a model that cannot run on such inputs
                model.properties[key] = None
    finding: Finding | None = model.properties[key]
    return finding


def _hooked(model: InspectedModel) -> Iterator[str]:
    """Yields the modules with backward hooks, which are never ours: we hook tensors."""
    for name, module in model.tree.modules.items():
        if module._backward_hooks or module._backward_pre_hooks:
            yield name


def _run(problem: AttributionProblem, inputs: Inputs) -> Outputs:
    with torch.no_grad():
        return problem.model.run(inputs)


def _random_forward(problem: AttributionProblem) -> Finding | None:
    first, second = (_run(problem, problem.inputs) for _ in range(2))
    tolerances = REPEATED if problem.model.device.type == "cpu" else SAME_SHAPES
    if all(close(first[name], second[name], tolerances) for name in first):
        return None
    where = first_difference(problem.model, problem.inputs, problem.inputs)
    return Finding(
        Cause.RANDOM_FORWARD,
        f"two runs of the model on the same input differ{where and f', from {where!r} on'}: its forward is random "
        "(dropout that ignores evaluation mode?), so no attribution can be repeated; make it deterministic",
    )


def _dependent_rows(problem: AttributionProblem) -> Finding | None:
    if random_forward(problem):
        return None  # then a change proves nothing
    before = _run(problem, problem.inputs)
    if problem.rows == 1:
        doubled = concatenated([problem.inputs, another_row(problem.inputs)])
        return _changed_row(problem, before, doubled, 0, DOUBLED_BATCH)
    ends = (_changed_row(problem, before, _all_like(problem, row), row, SAME_SHAPES) for row in (problem.rows - 1, 0))
    return next((finding for finding in ends if finding), None)


def _changed_row(
    problem: AttributionProblem, before: Outputs, inputs: Inputs, row: int, tolerances: Tolerances
) -> Finding | None:
    """Returns whether the outputs of ``row`` change with ``inputs``, in which only other rows differ."""
    after = _run(problem, inputs)
    here = slice(row, row + 1)
    by_row = [name for name, output in before.items() if output.ndim and len(output) == problem.rows]
    if all(close(before[name][here], after[name][here], tolerances) for name in by_row):
        return None
    where = first_difference(problem.model, problem.inputs, inputs, here)
    return Finding(
        Cause.ROWS_COUPLED,
        f"a row's output depends on the other rows of its batch{where and f', from {where!r} on'} (a batch norm in "
        "training mode?), so gradients mix rows; send one row per request, or make rows of the model independent",
    )


def _all_like(problem: AttributionProblem, row: int) -> Inputs:
    """Returns a batch in which the explained inputs of all rows are those of ``row``."""
    explained = {name: problem.inputs[name] for name in problem.explained}
    return {**problem.inputs, **{name: x[row : row + 1].expand_as(x).clone() for name, x in explained.items()}}


def _wrong_backward(problem: AttributionProblem) -> Finding | None:
    slope = None if random_forward(problem) else wrong_slope(problem)
    if slope is None:
        return None
    return Finding(
        Cause.WRONG_BACKWARD,
        "the backward pass does not compute the derivative of the forward pass: along a random direction, the target "
        f"changes by {slope.differences:.3g} and the gradient says {slope.gradient:.3g}; {_suspects(problem)}",
    )


def _suspects(problem: AttributionProblem) -> str:
    if hooked := list(_hooked(problem.model)):
        return f"there are backward hooks on {', '.join(map(repr, hooked[:3]))}: remove them"
    if functions := custom_functions(problem):
        listed = ", ".join(f"{name} in {module!r}" for name, module in list(functions.items())[:3])
        return f"the model has autograd functions of its own: {listed}; correct their backward"
    return "is a part of the path detached or rounded, or is a gradient changed by a hook on a tensor?"
