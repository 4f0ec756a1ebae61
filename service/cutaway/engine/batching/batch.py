"""Answers several requests in as few passes as possible, each as if it ran alone.

Requests whose inputs stack, and whose rows the model keeps independent, share one main pass, and the passes of
attributions that several of them want alike. A request that cannot share, or fails when it does, runs alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from cutaway.contract.requests import Point
from cutaway.contract.results import AttributionResult, InspectResult
from cutaway.engine.batching.same_question import bundles, joined, split
from cutaway.engine.batching.shared_attribution import share_attributions
from cutaway.engine.checks.row_independence import rows_independent
from cutaway.engine.cost.estimate import estimate
from cutaway.engine.execution.inspect import finish, run_plan
from cutaway.engine.execution.main_pass import MainPass, run_main_pass
from cutaway.engine.execution.shared_pass import may_share
from cutaway.engine.model.inspected_model import arguments_kind
from cutaway.engine.planning.plan import Plan
from cutaway.engine.runtime.interruption import latest

MAX_ELEMENTS = 1 << 20
"""The most elements of all inputs of one pass: graphs grow with them, and larger passes save nothing."""

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
            yield from (part for part in _parts(same_output) if len(part) > 1)


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
    return id(plan.sites), layers, plan.request.target.output


def _rows_independent(plan: Plan) -> bool:
    layers = {(name, Point.OUTPUT) for attribution in plan.attributions for name in attribution.layers}
    places = {(name, point) for name, specs in plan.sites.items() for point in specs} | layers
    try:
        return rows_independent(plan.model, plan.inputs, places, plan.request.target.output)
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


def _parts(group: Group) -> Iterator[Group]:
    """Splits ``group`` into parts that are not too large for one pass."""
    part: Group = {}
    elements = 0
    for number, plan in group.items():
        size = sum(tensor.numel() for tensor in plan.inputs.values())
        if part and elements + size > MAX_ELEMENTS:
            yield part
            part, elements = {}, 0
        part[number] = plan
        elements += size
    yield part


def _run_together(group: Group) -> dict[int, Outcome]:
    """Returns the outcomes of those requests of ``group`` that could share; the others run alone."""
    outcomes: dict[int, Outcome] = {}
    parts = bundles(group)
    plans = [joined([*part.values()]) for part in parts]
    model = plans[0].model
    model.passes.reset()
    # Of a request that cannot share, an exception may end all: alone each gets its result, or its own error.
    cancellation, arguments = latest([plan.cancellation for plan in plans]), plans[0].request.arguments
    with suppress(BaseException), model.session(cancellation, arguments):
        mains = run_main_pass(plans)
        for part, main, shared in zip(parts, mains, share_attributions(mains)):
            outcomes |= _finished(part, main, shared)
    return {number: _accompanied(outcome, len(group) - 1) for number, outcome in outcomes.items()}


def _accompanied(outcome: Outcome, companions: int) -> Outcome:
    """Returns the outcome of a request that shared its pass with so many others."""
    if not isinstance(outcome, InspectResult):
        return outcome
    return replace(outcome, provenance=replace(outcome.provenance, companions=companions))


def _finished(part: Group, main: MainPass, shared: Mapping[int, AttributionResult]) -> dict[int, Outcome]:
    """Returns the outcomes of one request, or of several that were joined; nothing for those that cannot be split."""
    model = main.plan.model
    try:
        with model.cancelled_by(main.plan.cancellation), model.passes.uncounted():
            result = finish(main._replace(timings=replace(main.timings)), shared=shared)
            return dict(zip(part, split(result, [plan.rows for plan in part.values()])))
    except BaseException as failure:
        return dict.fromkeys(part, failure) if len(part) == 1 else {}
