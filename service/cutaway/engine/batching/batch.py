"""Answers several requests in as few passes as possible, each as if it ran alone.

Requests whose inputs stack, and whose rows the model keeps independent, share one main pass, and the passes of
attributions that several of them want alike. A request that cannot share, or fails when it does, runs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from cutaway.contract.requests import CheckMode, Point
from cutaway.contract.results import InspectResult
from cutaway.engine.batching.same_question import bundles, joined, split
from cutaway.engine.checks.row_independence import rows_independent
from cutaway.engine.cost.estimate import estimate
from cutaway.engine.cost.pass_count import kept_elements
from cutaway.engine.execution.inspect import finish, run_plan
from cutaway.engine.execution.main_pass import MainPass, run_main_pass
from cutaway.engine.execution.shared_pass import may_share
from cutaway.engine.model.inspected_model import arguments_kind
from cutaway.engine.planning.plan import Plan
from cutaway.engine.runtime.interruption import latest

MAX_ELEMENTS = 1 << 20
"""The most elements of all inputs of one pass: graphs grow with them, and larger passes save nothing."""

MAX_KEPT = 1 << 24
"""The most numbers that the check of joined requests keeps, 64 MiB in float32, and takes a few times while it compares
them: rows of which few have room take so long that nothing is saved."""

Outcome: TypeAlias = InspectResult | BaseException
"""The result of a request, or why there is none."""

Group: TypeAlias = dict[int, Plan]
"""Requests that may share a pass, by their number in the batch."""


def inspect_batch(plans: Sequence[Plan]) -> list[Outcome]:
    """Answers requests to one model; afterwards the model is as before.

    Returns:
        One outcome for each plan, in order. Never raises: a failure is the outcome of its own request.
    """
    outcomes: dict[int, Outcome] = {}
    if len(plans) > 1:
        for group in _groups(plans):
            outcomes |= _run_together(group)
    return [outcomes[number] if number in outcomes else _run_alone(plan) for number, plan in enumerate(plans)]


def _run_alone(plan: Plan) -> Outcome:
    try:
        return estimate(plan) if plan.request.dry_run else run_plan(plan)
    except BaseException as failure:  # a model that exits, or cancels, ends its own request, not the others
        return failure


def _groups(plans: Sequence[Plan]) -> Iterator[Group]:
    """Yields groups of at least two requests; a request in none runs alone."""
    stacking: dict[Hashable, Group] = {}
    for number, plan in enumerate(plans):
        if not plan.cancellation.is_cancelled and may_share(plan.request):
            tensors = tuple((name, tensor.dtype, tensor.shape[1:]) for name, tensor in plan.inputs.items())
            stacking.setdefault((tensors, arguments_kind(plan.request.arguments)), {})[number] = plan
    for group in (group for group in stacking.values() if len(group) > 1):
        for same_output in _by_output(_independent(group)):
            yield from (part for part in _parts(same_output, _elements, MAX_ELEMENTS) if len(part) > 1)


def _independent(group: Group) -> Group:
    """Returns those requests of ``group`` whose rows the model keeps independent."""
    first, *_ = group.values()
    known: dict[Hashable, bool] = {}
    with first.model.session(arguments=first.request.arguments):
        for plan in group.values():
            if _hooked(plan) not in known:
                known[_hooked(plan)] = _rows_independent(plan)
    return {number: plan for number, plan in group.items() if known[_hooked(plan)]}


def _hooked(plan: Plan) -> Hashable:
    """Returns what decides where rows must be independent; requests that capture the same have one object for it."""
    layers = tuple(name for attribution in plan.attributions for name in attribution.layers)
    return id(plan.sites), layers, *_differentiated(plan)


def _differentiated(plan: Plan) -> Iterator[str]:
    """Yields the outputs whose gradients the request takes."""
    yield plan.request.target.output
    yield from (each.request.target.output for each in plan.attributions if each.request.target is not None)


def _rows_independent(plan: Plan) -> bool:
    layers = {(name, Point.OUTPUT) for attribution in plan.attributions for name in attribution.layers}
    places = {(name, point) for name, specs in plan.sites.items() for point in specs} | layers
    try:
        return all(rows_independent(plan.model, plan.inputs, places, output) for output in {*_differentiated(plan)})
    except BaseException:  # the request fails alone, with its own error
        return False


def _by_output(group: Group) -> Iterator[Group]:
    """Splits requests that differentiate by the output that they differentiate: where the gradient of one output
    arrives, that of another need not. The others go with any of them."""
    by_output: dict[str, Group] = {}
    others: Group = {}
    for number, plan in group.items():
        own = by_output.setdefault(plan.request.target.output, {}) if plan.differentiates else others
        own[number] = plan
    first, *rest = by_output.values() or [{}]
    yield {**first, **others}
    yield from rest


def _parts(group: Group, size: Callable[[Plan], int], most: int) -> Iterator[Group]:
    """Splits ``group`` into parts whose sizes sum to ``most`` at most, as far as they have several requests."""
    part: Group = {}
    total = 0
    for number, plan in group.items():
        if part and total + size(plan) > most:
            yield part
            part, total = {}, 0
        part[number] = plan
        total += size(plan)
    yield part


def _elements(plan: Plan) -> int:
    return sum(tensor.numel() for tensor in plan.inputs.values())


def _bundles(group: Group) -> Iterator[Group]:
    """Yields requests that are answered as one, no more than whose checks have room together."""
    for bundle in bundles(group):
        first = next(iter(bundle.values()))
        checked = len(bundle) > 1 and first.request.check.mode is not CheckMode.OFF
        row = kept_elements(first) if checked else 0
        yield from _parts(bundle, lambda plan, row=row: plan.rows * row, MAX_KEPT)  # type: ignore[misc]


def _run_together(group: Group) -> dict[int, Outcome]:
    """Returns the outcomes of those requests of ``group`` that could share; the others run alone."""
    outcomes: dict[int, Outcome] = {}
    first, *_ = group.values()
    cancellation = latest([plan.cancellation for plan in group.values()])
    first.model.passes.reset()
    # Of a request that cannot share, an exception may end all: alone each gets its result, or its own error.
    with suppress(BaseException):
        parts = [*_bundles(group)]
        with first.model.session(cancellation, first.request.arguments):
            mains = run_main_pass([joined([*part.values()]) for part in parts])
            for part, main in zip(parts, mains):
                outcomes |= _finished(part, main)
    return {number: _accompanied(outcome, len(group) - 1) for number, outcome in outcomes.items()}


def _accompanied(outcome: Outcome, companions: int) -> Outcome:
    """Returns the outcome of a request that shared its pass with so many others."""
    if not isinstance(outcome, InspectResult):
        return outcome
    return replace(outcome, provenance=replace(outcome.provenance, companions=companions))


def _finished(part: Group, main: MainPass) -> dict[int, Outcome]:
    """Returns the outcomes of one request, or of several that were joined; nothing for those that cannot be split."""
    model = main.plan.model
    try:
        with model.cancelled_by(main.plan.cancellation), model.passes.uncounted():
            result = finish(main._replace(timings=replace(main.timings)))
            return dict(zip(part, split(result, [plan.rows for plan in part.values()])))
    except BaseException as failure:
        return dict.fromkeys(part, failure) if len(part) == 1 else {}
