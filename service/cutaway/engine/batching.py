"""Answers several requests in as few passes as possible, each as if it ran alone.

Requests whose inputs stack, and whose rows the model keeps independent, share one main pass. Those that ask the
same are joined into one request, checks included. A request that cannot share, or fails when it does, runs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from torch import Tensor

from cutaway.contract import requests
from cutaway.contract.results import InspectResult
from cutaway.contract.results.arrays import ArrayField, Entry, with_arrays
from cutaway.contract.tensors import Array, by_value
from cutaway.contract.values import changed
from cutaway.engine.cost.estimate import estimate
from cutaway.engine.cost.pass_count import kept_elements
from cutaway.engine.execution.collect import collect_main_pass, telling
from cutaway.engine.execution.fitting import request_too_large
from cutaway.engine.execution.generation import Arrival, Arrivals, generate_together
from cutaway.engine.execution.inspect import finish, run_plan
from cutaway.engine.execution.main_pass import MainPass, may_share, run_main_pass
from cutaway.engine.execution.missing import untested_names
from cutaway.engine.execution.repeated import answered_again, identity
from cutaway.engine.execution.row_parts import independence_key, plan_rows_independent
from cutaway.engine.execution.value_warnings import with_own_warnings
from cutaway.engine.hooks.operators import is_address
from cutaway.engine.hooks.tokens import MASK, TEXT
from cutaway.engine.methods.captum_call import method_of
from cutaway.engine.model.inspected_model import arguments_kind
from cutaway.engine.model.session import is_out_of_memory, latest
from cutaway.engine.passes.features import has_superpixels
from cutaway.engine.passes.pass_recorder import CannotShare, ResolvedAttribution, RowRange, concatenated, consecutive
from cutaway.engine.planning.plan import RequestPlan

# Requests that differ only in inputs, classes and baselines are joined: hooks, validation, Captum's passes, references
# and copies to the host then run once for all their rows.

Request = TypeVar("Request", requests.InspectRequest, requests.Attribution)


def bundles(plans: Mapping[int, RequestPlan]) -> list[dict[int, RequestPlan]]:
    """Splits ``plans``, which may share a pass, into those that `joined` may join."""
    identical: dict[Hashable, dict[int, RequestPlan]] = {}
    for number, plan in plans.items():
        identical.setdefault(identity(plan.request) if _may_join(plan) else number, {})[number] = plan
    if len(identical) < 2:
        return [*identical.values()]
    alike: dict[Hashable, dict[int, RequestPlan]] = {}
    for key, bundle in identical.items():
        question = key if isinstance(key, int) else _question(next(iter(bundle.values())))
        alike.setdefault(question, {}).update(bundle)
    return [*alike.values()]


def _question(plan: RequestPlan) -> Hashable:
    """Returns what plans have in common that ask the same, by value: all but inputs, classes and baselines."""
    compares = plan.request.agreement  # and so is asked of which targets are the same
    attributions = (
        changed(_without_classes(attribution.request, compares), baselines=None) for attribution in plan.attributions
    )
    inputs: dict[str, Any] = dict.fromkeys(requests.INPUT_FIELDS)
    return by_value(changed(_without_classes(plan.request, compares), **inputs, attributions=tuple(attributions)))


def _without_classes(request: Request, compares: bool) -> Request:
    target = request.target
    of_class = isinstance(target, requests.ClassIndex) and not compares
    return changed(request, target=changed(target, indices=())) if of_class else request


def _may_join(plan: RequestPlan) -> bool:
    """Returns whether `joined` may make this request a part of a larger one. Then nothing in ``plan`` names rows by
    number, or is about the whole batch."""
    slices = (part for specs in plan.sites.values() for spec in specs.values() for part in spec.slices)
    return (
        _is_by_row(plan.request.target)
        and all(map(_is_attributed_by_row, plan.attributions))
        and not (plan.failed or plan.request.explain_if)
        and not any(part.axis <= 0 for part in slices)
    )


def _is_by_row(target: requests.Target | None) -> bool:
    """Returns whether ``target`` is found in each row without its number."""
    kinds = (requests.PredictedClass, requests.OutputSum, requests.OutputNorm, type(None))
    return isinstance(target, kinds) or (isinstance(target, requests.ClassIndex) and len(target.indices) == 1)


def _is_attributed_by_row(attribution: ResolvedAttribution) -> bool:
    """Returns whether Captum's passes treat rows independently, and draw nothing for the batch as a whole."""
    request = attribution.request
    return (
        method_of(request).batchable
        and request.noise is None
        and not request.is_judged
        and getattr(request, "max_delta", None) is None
        and _is_by_row(request.target)
        and all(len(mask) == 1 for mask in attribution.features.numbers.values())
        and not has_superpixels(request)
    )


def joined(plans: Sequence[RequestPlan]) -> RequestPlan:
    """Returns one plan for the rows of all ``plans``, which are of one bundle; of one plan, that plan."""
    if len(plans) == 1:
        return plans[0]
    inputs, rows = concatenated([plan.inputs for plan in plans]), [plan.rows for plan in plans]
    attributions = (
        replace(
            alike[0],
            request=_at_targets(alike[0].request, [one.request.target for one in alike], rows),
            inputs=inputs,
            baselines=concatenated([one.baselines for one in alike]),
        )
        for alike in zip(*(plan.attributions for plan in plans))
    )
    return replace(
        plans[0],
        request=_at_targets(plans[0].request, [plan.request.target for plan in plans], rows),
        inputs=inputs,
        attributions=tuple(attributions),
        cancellation=latest([plan.cancellation for plan in plans]),
        parts=tuple(rows),
    )


def _at_targets(request: Request, targets: Sequence[requests.Target | None], rows: Sequence[int]) -> Request:
    """Returns ``request`` with the target of each of ``rows``."""
    if all(target == targets[0] for target in targets):
        return request
    classes = [target for target in targets if isinstance(target, requests.ClassIndex)]
    indices = tuple(index for target, count in zip(classes, rows) for index in target.indices * count)
    return changed(request, target=requests.ClassIndex(indices, output=classes[0].output))


def split(result: InspectResult, sizes: Sequence[int]) -> list[InspectResult]:
    """Returns one result for each request that was joined. ``result`` has the rows of all requests in order, and
    ``sizes`` is the number of rows of each.

    Raises:
        CannotShare: no axis of a tensor is the batch, or an attribution failed.
    """
    if len(sizes) == 1:
        return [result]
    if any(attribution.error is not None for attribution in result.attributions):
        raise CannotShare  # alone each gets its result, or its own error
    return [_part(result, rows, number, len(sizes)) for number, rows in enumerate(consecutive(sizes))]


def _part(result: InspectResult, rows: RowRange, number: int, parts: int) -> InspectResult:
    """Returns the result of request ``number`` of ``parts`` joined ones: its ``rows`` of each array, and its own
    checks."""
    own = slice(rows.start, rows.stop)

    def cut(array: Array, field: ArrayField, *where: Any) -> Array:
        if not field.by_row:
            return array
        axis = result.example_axes.get(Entry(array, field, *where).name, 0) if result.example_axes else 0
        if axis is None or array.shape[axis : axis + 1] != (rows.total,):
            raise CannotShare
        return array[own] if axis == 0 else np.take(array, range(*own.indices(rows.total)), axis)

    attributions = []
    for attribution in result.attributions:
        size = len(attribution.checks) // parts  # those of all parts follow each other
        attributions.append(changed(attribution, checks=attribution.checks[number * size : (number + 1) * size]))
    return with_arrays(changed(result, classes=result.classes[own], attributions=tuple(attributions)), cut)


MAX_ELEMENTS = 1 << 20
"""The most elements of all inputs of one pass: graphs grow with them, and larger passes save nothing."""

MAX_KEPT = 1 << 24
"""The most elements that the check of joined requests keeps: 64 MiB in float32, a few times that during comparison.

Larger rows run alone: where few rows fit, joining saves no time.
"""

Outcome: TypeAlias = InspectResult | BaseException
"""The result of a request, or why there is none."""

Tell: TypeAlias = Callable[[int, Outcome], None]

Group: TypeAlias = dict[int, RequestPlan]
"""Requests that may share a pass, by their number in the batch."""


def inspect_batch(plans: Sequence[RequestPlan]) -> list[Outcome]:
    """Answers requests to one model; afterwards the model is as before.

    Returns:
        One outcome for each plan, in order. Never raises: a failure is the outcome of its own request.
    """
    outcomes: dict[int, Outcome] = {}
    answer_batch(plans, outcomes.__setitem__)
    return [outcomes[number] for number in range(len(plans))]


MAX_TEXTS = 32
"""The most texts that are written together."""


class Others(Protocol):
    """Requests that wait, and may join those whose tokens are written."""

    def first(self) -> RequestPlan | None:
        """Returns the one that has waited longest."""

    def take(self) -> Callable[[Outcome], None]:
        """Takes that one; returns what takes its outcome."""

    def pass_over(self) -> None:
        """Leaves that one to itself."""


def answer_batch(plans: Sequence[RequestPlan], tell: Tell, others: Others | None = None) -> None:
    """Answers requests as `inspect_batch`; ``tell`` gets the number of each plan and its outcome as soon as that is
    there, and does not raise. Those of ``others`` that may join them are answered too."""
    told: set[int] = set()

    def note(number: int, outcome: Outcome) -> None:
        told.add(number)
        tell(number, outcome)

    for group in _writing_groups(dict(enumerate(plans)), least=2 if others is None else 1):
        _write_together(group, note, others)
    if len(plans) > 1:
        proofs = plans[0].model.proofs
        before = proofs.seconds
        for group in _groups(plans):
            _run_together(group, note, proof_ms=(proofs.seconds - before) * 1000)
            before = proofs.seconds
    for number, plan in enumerate(plans):
        if number not in told:
            tell(number, _run_alone(plan))


def alike(plans: Mapping[int, RequestPlan]) -> Iterator[Group]:
    """Splits ``plans`` into those that are answered as one, where rows are independent; others are by themselves."""
    same: dict[Hashable, Group] = {}
    for number, plan in plans.items():
        joins = may_share(plan.request) and _may_join(plan)
        same.setdefault((_stacking(plan), _question(plan)) if joins else number, {})[number] = plan
    for group in same.values():
        yield from _parts(group, _elements, MAX_ELEMENTS)


# Requests that write tokens.


def may_write_beside(plan: RequestPlan) -> bool:
    """Returns whether a request writes tokens behind texts alone, and may do so beside others."""
    is_text = plan.request.generate is not None and not (plan.request.compare or plan.inputs.keys() - TEXT)
    has_operators = is_text and any(map(is_address, (*plan.sites, *plan.edits)))
    return is_text and not (has_operators or plan.cancellation.is_cancelled or untested_names(plan))


def joins(plan: RequestPlan) -> bool:
    """Returns whether the model keeps the rows of a request independent; the model has no hooks."""
    with plan.model.session(plan.cancellation, plan.request.arguments):
        return plan_rows_independent(plan)


def writing_key(plan: RequestPlan) -> Hashable:
    """Returns what requests that write tokens together have in common."""
    tensors = tuple((name, tensor.dtype, tensor.ndim) for name, tensor in plan.inputs.items() if name != MASK)
    return "writes", tensors, arguments_kind(plan.request.arguments)


def _rows(plan: RequestPlan) -> int:
    return plan.rows


def _writing_groups(plans: Mapping[int, RequestPlan], least: int) -> Iterator[Group]:
    """Yields groups of at ``least`` so many requests that write tokens together."""
    same: dict[Hashable, Group] = {}
    for number, plan in plans.items():
        if may_write_beside(plan):
            same.setdefault(writing_key(plan), {})[number] = plan
    for group in same.values():
        if len(group) >= least:
            yield from (part for part in _parts(_independent(group), _rows, MAX_TEXTS) if len(part) >= least)


def _write_together(group: Group, tell: Tell, others: Others | None) -> None:
    """Writes the tokens of requests together, and tells each outcome; one of ``group`` without an outcome runs alone
    later, one that joined at once."""
    first, joined = next(iter(group.values())), _Joined(others)
    model, arrivals = first.model, [_arrival(plan, partial(tell, number)) for number, plan in group.items()]
    model.passes.reset()
    with suppress(BaseException), model.session(arguments=first.request.arguments), _without_draws(group):
        generate_together(arrivals, joined)
    for plan, own in joined.left.values():
        own(_run_alone(plan))


def _arrival(plan: RequestPlan, tell: Callable[[Outcome], None]) -> Arrival:
    """Returns a request that is written beside others; ``tell`` gets its outcome, if it has one there."""
    so_far = None if plan.listener is None else plan.listener.so_far
    return Arrival(plan, so_far, lambda result: None if result is None else tell(result))


class _Joined(Arrivals):
    """Takes those of ``others`` that fit.

    Attributes:
        left: those that have no outcome yet, by the identity of their plans.
    """

    def __init__(self, others: Others | None) -> None:
        self._others = others
        self.left: dict[int, tuple[RequestPlan, Callable[[Outcome], None]]] = {}

    def are_waiting(self, rows: int) -> bool:
        plan = None if self._others is None else self._others.first()
        return plan is not None and rows + plan.rows <= MAX_TEXTS

    def take(self, rows: int) -> Sequence[Arrival]:
        taken, others = list[Arrival](), self._others
        while others is not None and (plan := others.first()) is not None and rows + plan.rows <= MAX_TEXTS:
            if not plan_rows_independent(plan):
                others.pass_over()
                continue
            rows += plan.rows
            self.left[id(plan)] = plan, others.take()
            taken.append(_arrival(plan, partial(self._answered, plan)))
        return taken

    def _answered(self, plan: RequestPlan, outcome: Outcome) -> None:
        _, tell = self.left.pop(id(plan))
        tell(outcome)


def _run_alone(plan: RequestPlan) -> Outcome:
    """Answers one request by itself, or estimates it for a dry run. Returns an exception instead of raising it, so that
    other requests continue."""
    try:
        if plan.request.dry_run:
            return estimate(plan)
        with telling([plan], lambda result: [result]) as tell:
            return run_plan(plan, tell)
    except BaseException as failure:  # a model that exits, or cancels, ends its own request, not the others
        return request_too_large(plan) if is_out_of_memory(failure) else failure


def _groups(plans: Sequence[RequestPlan]) -> Iterator[Group]:
    """Yields groups of at least two requests; a request in none runs alone."""
    stacking: dict[Hashable, Group] = {}
    for number, plan in enumerate(plans):
        if not plan.cancellation.is_cancelled and may_share(plan.request) and not untested_names(plan):
            stacking.setdefault(_stacking(plan), {})[number] = plan
    for group in (group for group in stacking.values() if len(group) > 1):
        for same_output in _by_output(_independent(group)):
            yield from (part for part in _parts(same_output, _elements, MAX_ELEMENTS) if len(part) > 1)


def _stacking(plan: RequestPlan) -> Hashable:
    """Returns what the inputs of requests that share a pass have in common."""
    tensors = tuple((name, tensor.dtype, tensor.shape[1:]) for name, tensor in plan.inputs.items())
    return tensors, arguments_kind(plan.request.arguments)


def _elements(plan: RequestPlan) -> int:
    return sum(map(Tensor.numel, plan.inputs.values()))


def _independent(group: Group) -> Group:
    """Returns those requests of ``group`` whose rows the model keeps independent."""
    first, *_ = plans = [*group.values()]
    keys = {independence_key(plan): plan for plan in plans}
    with first.model.session(arguments=first.request.arguments):
        known = {key: plan_rows_independent(plan, [each.inputs for each in plans]) for key, plan in keys.items()}
    return {number: plan for number, plan in group.items() if known[independence_key(plan)]}


def _by_output(group: Group) -> Iterator[Group]:
    """Splits ``group`` by the output that each request differentiates. Requests without gradients join the first part.

    In a joint backward pass of two outputs, a gradient that is missing for one output would look like zeros.
    """
    by_output: dict[str, Group] = {}
    others: Group = {}
    for number, plan in group.items():
        own = by_output.setdefault(plan.request.target.output, {}) if plan.differentiates else others
        own[number] = plan
    first, *rest = by_output.values() or [{}]
    yield {**first, **others}
    yield from rest


def _parts(group: Group, size: Callable[[RequestPlan], int], most: int) -> Iterator[Group]:
    """Splits ``group``, in order, into parts whose sizes sum to at most ``most``. A request that is larger is a part by
    itself."""
    part: Group = {}
    total = 0
    for number, plan in group.items():
        if part and total + size(plan) > most:
            yield part
            part, total = {}, 0
        part[number] = plan
        total += size(plan)
    yield part


def _bundles(group: Group) -> Iterator[Group]:
    """Yields the requests that are joined into one. The check of joined requests keeps at most `MAX_KEPT` elements."""
    for bundle in bundles(group):
        first = next(iter(bundle.values()))
        checked = len(bundle) > 1 and first.request.check.mode is not requests.CheckMode.OFF
        row = kept_elements(first) if checked else 0
        yield from _parts(bundle, lambda plan, row=row: plan.rows * row, MAX_KEPT)  # type: ignore[misc]


def _run_together(group: Group, tell: Tell, proof_ms: float) -> None:
    """Runs the requests of ``group`` in one main pass, and tells each outcome; bundles without attributions come first.
    A request without an outcome runs alone later.

    ``proof_ms``: how long the test took that rows are independent.
    """
    companions, (first, *_) = len(group) - 1, group.values()
    cancellation = latest([plan.cancellation for plan in group.values()])
    first.model.passes.reset()
    with suppress(BaseException):  # which one request may raise: alone each gets its result, or its own error
        parts = [*_bundles(group)]
        with first.model.session(cancellation, first.request.arguments):
            plans = [joined([*part.values()]) for part in parts]
            with _without_draws(group):
                again = _answered_again(plans[0], parts[0], companions) if len(plans) == 1 else {}
                mains = [] if again else run_main_pass(plans)
            for number, outcome in again.items():
                tell(number, outcome)
            if again:
                return
            mains[0].timings.proof_ms += proof_ms  # which all have in common
            for part, main in zip(parts, mains):
                _tell_main_pass(part, main)
            for part, main in sorted(zip(parts, mains), key=lambda each: bool(each[1].plan.attributions)):
                for number, outcome in _finished(part, main, companions).items():
                    tell(number, outcome)


def _answered_again(joint: RequestPlan, part: Group, companions: int) -> dict[int, Outcome]:
    """Returns the outcome of each request of ``part``, which ``joint`` joins in this order, if they were asked
    before."""
    plans = [*part.values()]
    again = None if any(plan.listener for plan in plans) else answered_again(joint)
    return {} if again is None else dict(zip(part, _shared(again, plans, companions)))


def _shared(result: InspectResult, plans: Sequence[RequestPlan], companions: int) -> list[InspectResult]:
    """Returns the result of each of ``plans`` from that of all, whose pass ``companions`` shared."""
    shared = changed(result, provenance=changed(result.provenance, companions=companions))
    return split(shared, [plan.rows for plan in plans])


def _tell_main_pass(part: Group, main: MainPass) -> None:
    """Tells listeners what the main pass returned, before the attributions of any request run."""
    plans = [*part.values()]
    with suppress(CannotShare), telling(plans, partial(split, sizes=[plan.rows for plan in plans])) as tell:
        if tell is not None:
            tell(collect_main_pass(main, {}))


@contextmanager
def _without_draws(group: Group) -> Iterator[None]:
    """Raises `CannotShare` if the block draws random numbers and a request has a seed. In a larger batch, the rows of
    the request would get other numbers than alone."""
    if all(plan.seed is None for plan in group.values()):
        yield
        return
    model = next(iter(group.values())).model
    with model.kept_rng_state():
        before = model.rng_fingerprint()
        yield
        if model.rng_fingerprint() != before:
            raise CannotShare


def _finished(part: Group, main: MainPass, companions: int) -> dict[int, Outcome]:
    """Computes the attributions of one bundle after its main pass, and returns the outcome of each request; none if
    they must run alone. ``companions``: how many other requests the pass had."""
    model, plans = main.plan.model, [*part.values()]
    by_request = partial(split, sizes=[plan.rows for plan in plans])
    try:
        cancelled = model.cancelled_by(main.plan.cancellation)
        seed = main.plan.seed if main.plan.attributions else None  # keeping the generators takes a while
        with cancelled, model.passes.uncounted(), model.drawing_from(seed), telling(plans, by_request) as tell:
            result = finish(main._replace(timings=replace(main.timings)), tell=tell)
            return dict(zip(part, with_own_warnings(_shared(result, plans, companions), main, plans)))
    except BaseException as failure:
        alone = len(part) == 1 and not is_out_of_memory(failure)  # by itself, it may have enough
        return dict.fromkeys(part, failure) if alone else {}
