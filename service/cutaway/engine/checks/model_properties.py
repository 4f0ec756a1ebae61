"""Tests a model for what makes every attribution doubtful: random forward, dependent rows, wrong backward.

Each is tested by passes on the first inputs of a kind, and now and then on later ones (`retested`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import wraps
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.modules import module as torch_modules

from cutaway.contract import requests
from cutaway.contract.errors import InvalidArgument
from cutaway.contract.results import Cause
from cutaway.engine.checks.adjoint import Mismatch, any_mismatch, differentiated, target_mismatch, wrong_slope
from cutaway.engine.checks.fault_location import custom_functions, first_difference
from cutaway.engine.checks.forward_mode import ForwardModeRefused
from cutaway.engine.checks.function_checks import check_functions
from cutaway.engine.checks.row_independence import distant_rows, other_rows
from cutaway.engine.hooks.axes import known_row_axes
from cutaway.engine.methods.captum_call import method_of
from cutaway.engine.model.inspected_model import Inputs, InspectedModel, Outputs
from cutaway.engine.model.session import is_out_of_memory
from cutaway.engine.passes.findings import Finding, retested
from cutaway.engine.passes.pass_recorder import AttributionProblem, cached_per_problem, concatenated
from cutaway.engine.passes.reference_inputs import operator_dtypes
from cutaway.engine.runtime.numerics import (
    DOUBLED_BATCH,
    PART_OF_BATCH,
    REPEATED,
    SAME_SHAPES,
    Tolerances,
    close,
    close_unmasked,
)
from cutaway.engine.runtime.rng import fingerprint, own_generators

T = TypeVar("T")

_FEWEST_ROWS = 4
"""The fewest rows of the larger batch: one row by itself is compared with itself beside three others."""

_MOST_DOUBLINGS = 10
"""The most sizes of a larger batch that a rehearsal tests."""

_MANY_STEPS, _FEW_MODULES = 16, 500
"""The fewest steps of a path, and the most modules, beside whose one pass a test of the first caller's inputs takes
little. A test costs Python for each operator; a path costs arithmetic for each step."""

_LOOKS = 6
"""How many runs must move a random number generator: other threads may, now and then, use the same ones."""


def random_forward(problem: AttributionProblem) -> Finding | None:
    """Returns whether the forward pass is random, and where two passes on the same inputs differ."""
    return _cached(problem, _random_forward, _differentiates(problem))


def dependent_rows(problem: AttributionProblem, largest: int = 0) -> Finding | None:
    """Returns whether, and where, a row's outputs depend on the explained inputs of another row, or on their number.

    This is less than `row_independence.rows_independent` proves before requests share a batch, and avoids false alarms.
    It uses the request's own rows. Inputs that are not explained, such as lengths, may affect all rows.

    Args:
        problem: the problem.
        largest: the most rows that Captum runs in one pass; twice the problem's rows are tried in any case.
    """
    if problem.mixes_rows:
        return None
    key = problem.explained, method_of(problem.request).has_target
    fewest = max(2 * problem.rows, _FEWEST_ROWS)
    sizes = [max(largest, fewest)]
    if problem.model.proofs.rehearses:  # a question with fewer steps runs fewer rows
        sizes = [size for size in (fewest << power for power in range(_MOST_DOUBLINGS)) if size < largest] + sizes
    tests = map(_DependentRows.of, sizes)
    return next((finding for test in tests if (finding := _cached(problem, test, *key))), None)


def wrong_backward(problem: AttributionProblem, whole: AttributionProblem | None = None) -> Finding | None:
    """Returns whether the backward pass computes something else than the derivative, and the suspected places.

    The derivative of all targets by all inputs is tested now and then. Only if that finds something, each problem's own
    target is tested at its own inputs.

    Args:
        problem: the problem.
        whole: the problem of the rows with which its own ran.
    """
    if problem.edits_gradients:
        return None  # an edit of a gradient is meant to make it another one
    first = _suspicion_here if _is_cheap_here(problem) else None
    suspicion = _cached(whole or problem, _suspicion, *differentiated(problem), first=first)
    if not suspicion:
        return None
    if suspicion is _Suspicion.UNTESTABLE and problem.target.positions is not None:
        positions = frozenset(map(tuple, problem.target.positions.tolist()))
        return _cached(problem, _wrong_backward, positions, *differentiated(problem))
    return cached_per_problem(_wrong_backward)(problem)


def _is_cheap_here(problem: AttributionProblem) -> bool:
    """Returns whether a test at the caller's own inputs takes little time beside the attribution. That is a path of
    many steps; if one pass runs all steps, only for a model of few modules."""
    request = problem.request
    if not isinstance(request, requests.PathAttribution) or request.n_steps < _MANY_STEPS:
        return False
    in_one_pass = request.n_steps <= method_of(request).points_per_pass(problem)
    return not in_one_pass or len(problem.model.tree.modules) <= _FEW_MODULES


class _Suspicion(Enum):
    """The outcome of the adjoint test of all targets."""

    WRONG = "wrong"
    UNTESTABLE = "untestable"


def _cached(
    problem: AttributionProblem,
    test: Callable[[AttributionProblem], T | None],
    *more: Hashable,
    first: Callable[[AttributionProblem], T | None] | None = None,
) -> T | None:
    """Returns the result of ``test`` on these or earlier inputs of their kind, as `retested`. A result holds for one
    explained output and one set of foreign hooks."""
    scope = (problem.target.source, problem.target.is_neuron)
    hooks = _foreign_hooks(problem)  # whose numbers another process gives to other hooks
    result: T | None = retested(problem, test, *more, *scope, *hooks, lasts=not hooks, first=first)
    return result


@cached_per_problem
def _foreign_hooks(problem: AttributionProblem) -> Sequence[Hashable]:
    """Returns the modules with hooks that are not ours, and those hooks' numbers; ``""`` has those of all modules."""
    numbers = (
        (name, tuple(number for table in tables for number, hook in table.items() if not _is_ours(hook)))
        for name, tables in _with_hooks(problem.model)
    )
    return [(name, foreign) for name, foreign in numbers if foreign]


def _unrecorded_test(test: Callable[[AttributionProblem], T]) -> Callable[[AttributionProblem], T | None]:
    """Decorates a test whose passes belong to no request, and which finds nothing where the model cannot run."""

    @wraps(test)
    def unrecorded_test(problem: AttributionProblem) -> T | None:
        try:
            with problem.model.unrecorded():
                return test(problem)
        except InvalidArgument:  # the request's own pass reports such a model
            problem.model.proofs.proves_nothing()
            return None

    return unrecorded_test


_BACKWARD = ("_backward_hooks", "_backward_pre_hooks")
_TABLES = (*_BACKWARD, "_forward_hooks", "_forward_pre_hooks")
_tables_of_module = attrgetter(*_TABLES)
_tables_of_all_modules = attrgetter(*(f"_global{table}" for table in _TABLES))


def _with_hooks(model: InspectedModel) -> Iterator[tuple[str, tuple[Mapping[int, Any], ...]]]:
    """Yields the modules with hooks, and their tables of hooks; ``""`` has those of all modules."""
    yield "", _tables_of_all_modules(torch_modules)
    for name, module in model.tree.modules.items():
        if any(tables := _tables_of_module(module)):
            yield name, tables


def _is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("cutaway.engine.")


def _differentiates(problem: AttributionProblem) -> bool:
    return method_of(problem.request).runs_backward


def _run(problem: AttributionProblem, inputs: Inputs) -> Outputs:
    """Runs the model without a graph, and returns its outputs; for a neuron, only the activation of the neuron's
    module."""
    with torch.no_grad():
        if problem.target.is_neuron:
            return {problem.target.source: problem.read(inputs)}
        return problem.model.run(inputs)


@_unrecorded_test
def _random_forward(problem: AttributionProblem) -> Finding | None:
    """Repeats the forward pass at the same input. Reports outputs that differ, random draws, and values that differ in
    a run with gradients."""
    first, second = (_run(problem, problem.inputs) for _ in range(2))
    tolerances = REPEATED if problem.model.device.type == "cpu" else SAME_SHAPES
    kept = first[problem.target.source].clone()  # a model may write into what it returned
    generators, third = own_generators(problem.model.module), list[Tensor]()
    if not all(close(first[name], second[name], tolerances) for name in first):
        where = first_difference(problem.model, problem.inputs, problem.inputs)
        observation = f"two runs of the model on the same input differ{where and f', from {where!r} on'}"
    elif all(_moves_generators(problem, generators, third) for _ in range(_LOOKS)):
        observation = "the model draws random numbers while it runs"
    elif not close_unmasked(kept, third[0], PART_OF_BATCH.computed_in(operator_dtypes(problem))):
        return _OTHER_WITH_GRAPH
    else:
        return None
    return Finding(
        Cause.RANDOM_FORWARD,
        f"{observation}: its forward is random (dropout that ignores evaluation mode?), so no attribution can be "
        "repeated; make it deterministic",
    )


_OTHER_WITH_GRAPH = Finding(
    Cause.RANDOM_FORWARD,
    "a run with gradients returns other values than one without: what is explained is not what the model predicts; let "
    "its forward not depend on PyTorch's grad mode",
)


def _moves_generators(problem: AttributionProblem, generators: Sequence[object], outputs: list[Tensor]) -> bool:
    """Runs the model, and returns whether that moved a generator of random numbers. Adds the output to ``outputs``.

    The run records a graph if the method differentiates. A forward that seeds its generator moves it in the first of
    two runs only.
    """
    before = fingerprint(problem.model.device, generators)
    with torch.set_grad_enabled(_differentiates(problem)):
        outputs.append(problem.read(problem.inputs).detach().clone())
    return fingerprint(problem.model.device, generators) != before


@dataclass(frozen=True)
class _DependentRows:
    """A test of the problem's own rows, and of a batch of 2 ** ``power`` rows, or else of ``largest``."""

    power: int
    largest: int = field(compare=False, repr=False)

    @classmethod
    def of(cls, largest: int) -> _DependentRows:
        return cls((largest - 1).bit_length(), largest)

    def __call__(self, problem: AttributionProblem) -> Finding | None:
        return _unrecorded_test(self._find)(problem)

    def _find(self, problem: AttributionProblem) -> Finding | None:
        """Reports rows whose outputs change when other rows are exchanged, or when the batch gets more rows."""
        if random_forward(problem):
            return None  # then a change proves nothing
        before = _run(problem, problem.inputs)
        exchanged = (_changed_rows(problem, before, *others, SAME_SHAPES) for others in _exchanges(problem))
        if finding := next((finding for finding in exchanged if finding), None):
            return finding
        if problem.edits:  # which are for the batch as it is
            return None
        try:
            return self._in_larger_batch(problem, before, 2**self.power)
        except InvalidArgument:  # of a model that takes fewer rows
            return self._in_larger_batch(problem, before, self.largest)

    def _in_larger_batch(self, problem: AttributionProblem, before: Outputs, rows: int) -> Finding | None:
        """Compares all rows in a batch to which others are added."""
        # Several rows are repeated: only their number differs, and the company of each row is as it was.
        others = other_rows(problem.inputs) if problem.rows == 1 else problem.inputs
        repeated = [others] * math.ceil((rows - problem.rows) / len(next(iter(others.values()))))
        batch = {name: x[:rows] for name, x in concatenated([problem.inputs, *repeated]).items()}
        return _changed_rows(problem, before, batch, range(problem.rows), DOUBLED_BATCH)


def _exchanges(problem: AttributionProblem) -> Iterator[tuple[Inputs, list[int]]]:
    """Yields batches in which some rows have the explained inputs of others, and the rows that keep their own.

    Of any two rows, each keeps its own in a batch where the other does not: their numbers differ in a binary digit.
    """
    for digit in range((problem.rows - 1).bit_length()):
        for value in (0, 1):
            kept = [row for row in range(problem.rows) if row >> digit & 1 == value]
            others = (min(row ^ 1 << digit, kept[-1]) for row in range(problem.rows))
            sources = [row if row >> digit & 1 == value else other for row, other in enumerate(others)]
            yield {**problem.inputs, **{name: problem.inputs[name][sources] for name in problem.explained}}, kept


def _changed_rows(
    problem: AttributionProblem, before: Outputs, inputs: Inputs, rows: Sequence[int], tolerances: Tolerances
) -> Finding | None:
    """Returns whether the outputs of ``rows`` change with ``inputs``, in which only other rows differ."""
    after = _run(problem, inputs)
    before, after = _elements_read(problem, before, after)
    axes, read = known_row_axes(problem.model, problem.inputs), [problem.target.source]
    if not method_of(problem.request).has_target:
        read = [name for name, output in before.items() if axes.of_output(name, output, problem.rows) == 0]
    by_row = [name for name in read if name in before and before[name].ndim and len(before[name]) == problem.rows]
    here = list(rows)
    shorter = {name for name in by_row if len(after[name]) < problem.rows}
    differing = [name for name in by_row if name in shorter or not torch.equal(before[name][here], after[name][here])]
    if differing:
        tolerances = tolerances.computed_in(operator_dtypes(problem))
    changed = (row for row in rows for name in differing if not _same_row(before[name], after[name], row, tolerances))
    row = next(changed, None)
    if row is None:
        return None
    where = first_difference(problem.model, problem.inputs, inputs, row)
    what = f"a row's output depends on the other rows of its batch{where and f', from {where!r} on'}"
    sequence = where and problem.model.tree.rows_on_axis_1(where.partition(":")[0])
    remedy = "send one row per request, or make rows of the model independent"
    why = sequence or f"(a batch norm in training mode?), so gradients mix rows; {remedy}"
    return Finding(Cause.ROWS_COUPLED, f"{what}{': ' if sequence else ' '}{why}")


def _elements_read(problem: AttributionProblem, before: Outputs, after: Outputs) -> tuple[Outputs, Outputs]:
    """Returns ``before`` and ``after`` as they are. If the output's shape depends on the number of rows, returns the
    elements that the target reads.

    Similarities between all rows are such an output. Methods that put copies of a row next to each other read other
    elements there, so their outputs stay whole.
    """
    name, positions = problem.target.source, problem.target.positions
    beside = isinstance(problem.request, requests.ExpectedGradient) or problem.request.noise is not None
    if positions is None or beside or before[name].shape[1:] == after[name].shape[1:]:
        return before, after
    picked = (torch.arange(problem.rows, device=positions.device), *positions.unbind(dim=1))
    return {name: before[name][picked]}, {name: after[name][picked]}


def _same_row(one: Tensor, other: Tensor, row: int, tolerances: Tolerances) -> bool:
    return close_unmasked(one[row : row + 1], other[row : row + 1], tolerances)


@_unrecorded_test
def _suspicion_here(problem: AttributionProblem) -> _Suspicion | None:
    """Tests the first backward pass at a caller's own inputs, where an earlier `_suspicion` at other inputs found
    nothing."""
    try:
        return _Suspicion.WRONG if any_mismatch(problem, repeats=False) else None
    except ForwardModeRefused:
        return _Suspicion.UNTESTABLE


@_unrecorded_test
def _suspicion(problem: AttributionProblem) -> _Suspicion | None:
    """Tests the gradients of all targets at the problem's inputs and at others. Returns WRONG, UNTESTABLE, or None
    without a fault."""
    if random_forward(problem):
        return None
    refused = False
    try:
        here = any_mismatch(problem)
    except ForwardModeRefused:
        here, refused = None, True
    if here or _mismatch_elsewhere(problem) or (not problem.edits and _wrong_slope(problem)):
        return _Suspicion.WRONG
    return _Suspicion.UNTESTABLE if refused else None


def _wrong_slope(problem: AttributionProblem) -> Mismatch | None:
    """Returns slopes that contradict the gradient; None where a row's slope is not that of its own target, because
    rows depend on each other."""
    wrong = wrong_slope(problem)
    return None if wrong and dependent_rows(problem) else wrong


def _mismatch_elsewhere(problem: AttributionProblem) -> Mismatch | None:
    """Runs the adjoint test at inputs that are derived from the first row. Returns None with edits, which are for the
    batch as it is."""
    if problem.edits or problem.model.device.type != "cpu":  # elsewhere an index out of range may end the process
        return None
    try:
        return any_mismatch(replace(problem, inputs=distant_rows(problem.inputs)), repeats=False)
    except (ForwardModeRefused, InvalidArgument):
        return None
    except Exception as failure:
        if is_out_of_memory(failure):  # the request itself may have fewer rows
            problem.model.proofs.proves_nothing()
            return None
        raise


@_unrecorded_test
def _wrong_backward(problem: AttributionProblem) -> Finding | None:
    """Tests the gradient of the problem's own target at its own inputs, after `_suspicion` raised a doubt. Reports the
    slopes and the suspected places."""
    refused = False
    try:
        wrong = target_mismatch(problem)
    except ForwardModeRefused:
        wrong, refused = None, True
    if refused or not (wrong or problem.edits):  # an edit may mix rows, and a slope is of a row's own target
        wrong = _wrong_slope(problem)
    if wrong is None:
        return _wrong_function(problem) if refused else None
    if wrong.random:
        return Finding(
            Cause.CANCELLATION,
            "the gradient has large rounding errors: along a random direction, the target changes by "
            f"{wrong.forward:.3g} and the gradient says {wrong.gradient:.3g}, and at inputs next to this one, or for a "
            "larger gradient, the two differ otherwise; load the model in a more precise data type",
        )
    return Finding(
        Cause.WRONG_BACKWARD,
        "the backward pass does not compute the derivative of the forward pass: along a random direction, the target "
        f"changes by {wrong.forward:.3g} and the gradient says {wrong.gradient:.3g}; {_suspects(problem)}",
    )


def _wrong_function(problem: AttributionProblem) -> Finding | None:
    """Returns what tests of each custom function by itself find."""
    wrong, untested = check_functions(problem)
    if wrong:
        return Finding(
            Cause.WRONG_BACKWARD,
            "the backward pass does not compute the derivative of the forward pass in autograd functions of the model: "
            f"{', '.join(wrong[:3])}; correct their backward",
        )
    if untested:
        return Finding(
            Cause.CHECK_FAILED,
            "no test could tell whether the backward pass of autograd functions of the model is right: "
            f"{', '.join(untested[:3])}; let them compute in float64 too, or compare with torch.autograd.gradcheck",
        )
    return None


def _suspects(problem: AttributionProblem) -> str:
    if hooked := [name for name, tables in _with_hooks(problem.model) if any(tables[: len(_BACKWARD)])]:
        listed = ", ".join(repr(name) if name else "all modules" for name in hooked[:3])
        return f"there are backward hooks on {listed}: remove them"
    if functions := custom_functions(problem):
        listed = ", ".join(f"{name} in {module!r}" for name, module in list(functions.items())[:3])
        return f"the model has autograd functions of its own: {listed}; correct their backward"
    return "is a part of the path detached or rounded, or is a gradient changed by a hook on a tensor?"
