"""Answers one request: plan, hook, forward, backward, collect, attribute, check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TypeAlias

import torch
from torch import Tensor

from cutaway.contract import results
from cutaway.contract.errors import CutawayError, DeadlineExceeded, FailedPrecondition, Reason, at, error
from cutaway.contract.requests import CheckMode, InspectRequest, NeuronAttribution, PathAttribution, Point, field_name
from cutaway.engine.checks.check import run_checks
from cutaway.engine.checks.fault_location import failed_check
from cutaway.engine.checks.pass_summary import PassSummary, summarized
from cutaway.engine.execution.agreement import with_agreements
from cutaway.engine.execution.attacks import with_attacks
from cutaway.engine.execution.collect import (
    Tell,
    arrays,
    axes_in_front,
    collect_main_pass,
    in_own_axes,
    placed_rows,
    qualifying_rows,
    token_attribution,
    whole_result,
    with_attributions,
    with_known_axes,
)
from cutaway.engine.execution.concepts import with_concepts
from cutaway.engine.execution.counterfactual import with_counterfactual
from cutaway.engine.execution.fitting import attribution_too_large, in_passes_that_fit, with_smaller_passes
from cutaway.engine.execution.generation import generate
from cutaway.engine.execution.influence import with_influence
from cutaway.engine.execution.main_pass import MainPass
from cutaway.engine.execution.missing import with_unread_inputs
from cutaway.engine.execution.repeated import answered_again, kept_plan, planned_before, remembered
from cutaway.engine.execution.row_parts import main_pass_that_fits, of_rows, rows_divide
from cutaway.engine.execution.sweep import with_direct, with_sweep
from cutaway.engine.hooks.observe import axes_first, observing
from cutaway.engine.methods.captum_call import explain, method_of, with_shared_passes
from cutaway.engine.methods.gradients import finer_steps
from cutaway.engine.methods.metrics import insensitive, metrics
from cutaway.engine.model.inspected_model import Inputs, InspectedModel, Outputs, gradients
from cutaway.engine.model.session import NEVER_CANCELLED, Cancellation, is_out_of_memory, ran_out_of_memory, timed
from cutaway.engine.passes.features import regions_found
from cutaway.engine.passes.pass_recorder import (
    AttributionProblem,
    CannotShare,
    PassRecorder,
    ResolvedAttribution,
    Values,
    consecutive,
    run_to_neuron,
)
from cutaway.engine.passes.reference_inputs import CompletenessSums, completeness_sums, target_at_inputs
from cutaway.engine.passes.targets import ResolvedTarget, identity, resolve_target
from cutaway.engine.planning.attribution_setup import left_out
from cutaway.engine.planning.plan import RequestPlan, in_place, plan_request
from cutaway.engine.runtime.numerics import to_numpy

ReadNeuron: TypeAlias = Callable[[str], Tensor]
"""Returns, by a module's name, the first tensor that its first call returned."""


def run_attributions(main: MainPass, moved: MainPass | None = None) -> Iterator[tuple[results.AttributionResult, ...]]:
    """Computes and checks the attributions of one request, or of several that were joined, on the edited model.

    Args:
        main: the main pass; whether edits changed something only now is added to its receipts.
        moved: one at other inputs, at which the same targets are explained.

    Yields:
        As `each_attribution`; with the checks of each joined request, one behind the other.

    Raises:
        CutawayError: with the attribution, or the edit, at fault.
    """
    plan, receipts = main.plan, main.recording.receipts
    rows = qualifying_rows(main) if plan.attributions else None

    def compute(index: int) -> Iterator[results.AttributionResult]:
        for problem in problems(main, index):
            before = replace(main.timings)
            there = problem if moved is None else replace(problem, inputs=moved.plan.inputs)
            result = in_own_axes(_attribute_rows(rows, there, moved or main), problem, main.batch)
            yield replace(
                result,
                attribution_ms=main.timings.attribution_ms - before.attribution_ms,
                check_ms=main.timings.check_ms - before.check_ms,
            )

    if not plan.attributions:
        yield from each_attribution(main, compute)
        return
    with (
        observing(plan.model.tree, {}, plan.edits, batch=main.batch) as edited,
        plan.model.guard.removing_new_hooks(),
        plan.model.passes_inside(edited.forward),
    ):
        yield from each_attribution(main, compute)
    for number, receipt in edited.receipts.items():
        known = receipts.get(number, results.EditReceipt())
        receipts[number] = replace(known, changed=known.changed or receipt.changed)


def each_attribution(
    main: MainPass, compute: Callable[[int], Iterator[results.AttributionResult]]
) -> Iterator[tuple[results.AttributionResult, ...]]:
    """Yields what ``compute`` yields for the number of each attribution in the plan, or the error in its place.

    They are in the order of the request; of a top-k target there are several.
    """
    plan = main.plan
    indices = {number: index for index, number in enumerate(plan.numbers)}
    for number in sorted({*plan.failed, *indices}):
        yield (plan.failed[number],) if number in plan.failed else _one_attribution(main, indices[number], compute)


def _one_attribution(
    main: MainPass, index: int, compute: Callable[[int], Iterator[results.AttributionResult]]
) -> tuple[results.AttributionResult, ...]:
    """Returns the results of one attribution, several for a top-k target; or its error, if the request takes these."""
    plan, number = main.plan, main.plan.numbers[index]
    try:
        with _attribution_errors(number):
            _refuse_uncalled_modules(main, index)
            return tuple(compute(index))
    except CutawayError as failure:
        return (in_place(plan.request, plan.request.attributions[index], failure),)
    except Exception as failure:
        if plan.model.has_more_memory or not is_out_of_memory(failure):
            raise
        attribution = plan.attributions[index]
        return (in_place(plan.request, attribution.request, attribution_too_large(attribution, number)),)


@contextmanager
def _attribution_errors(number: int) -> Iterator[None]:
    """Names attribution ``number`` of the request in the fields of errors; an edit that fails keeps its own field."""
    try:
        with at(f"attributions[{number}]"):
            yield
    except CutawayError as failure:
        if failure.field.startswith(f"attributions[{number}].edits["):
            failure.field = failure.field.partition(".")[2]
        raise


def _refuse_uncalled_modules(main: MainPass, index: int) -> None:
    """Refuses attribution ``index`` of the plan at modules that forward did not call.

    Raises:
        InvalidArgument: ``METHOD_INAPPLICABLE``.
    """
    attribution = main.plan.attributions[index]
    for name, field in attribution.modules.items():
        if not main.recording.calls[name]:
            text = f"the model never called its module {name!r}, so there is nothing to explain there"
            raise error(Reason.METHOD_INAPPLICABLE, text, f"{field_name(type(attribution.request))}.{field}")
    path, calls = attribution.request.layer_path, main.recording.calls.get(attribution.layer, ())
    if path and not any(path in call.dtypes[Point.OUTPUT] for call in calls):
        paths = ", ".join(dict.fromkeys(repr(other) for call in calls for other in call.dtypes[Point.OUTPUT]))
        text = f"no tensor at {path!r} of the output of {attribution.layer!r}; there is {paths or 'none'}"
        raise error(Reason.PATH_NOT_FOUND, text, "layer_path")


def problems(main: MainPass, index: int, read_neuron: ReadNeuron | None = None) -> Iterator[AttributionProblem]:
    """Resolves the target of attribution number ``index``: yields one problem, for a top-k target one for each class.

    Args:
        main: the main pass of the request.
        index: the attribution's number in the plan.
        read_neuron: reads the activation of a neuron's module; by default from a forward pass.
    """
    attribution = with_known_axes(main.plan.attributions[index], main.batch)
    run_neuron = torch.no_grad()(partial(run_to_neuron, attribution.model, attribution.inputs))
    targets = _targets(main, attribution, read_neuron or run_neuron)
    attribution = with_shared_passes(attribution, len(targets))
    for target in targets:
        explained = (attribution.inputs[name] for name in attribution.explained)
        if attribution.layer and not all(tensor.is_floating_point() for tensor in explained):
            attribution.model.guard.enable_gradients()
        yield attribution.at_target(target)


def _targets(main: MainPass, attribution: ResolvedAttribution, read_neuron: ReadNeuron) -> Sequence[ResolvedTarget]:
    """Returns what is explained: a neuron, the target, each class of a top-k target, or else the first output."""
    request, model, method = attribution.request, attribution.model, method_of(attribution.request)
    if not method.differentiates:
        return (ResolvedTarget(next(iter(main.outputs)), identity),)
    if isinstance(request, NeuronAttribution):
        with at(field_name(type(request))):
            neuron, _ = resolve_target(model, request.neuron, main.outputs, main.batch, read_neuron)
        if method.explains_neuron:
            return neuron
    target = request.target or main.plan.request.target
    with at("target" if request.target else ""):
        return resolve_target(model, target, main.outputs, main.batch, read_neuron)[0]


def _attribute_rows(
    rows: Sequence[int] | None, problem: AttributionProblem, main: MainPass
) -> results.AttributionResult:
    """Computes the attribution of ``rows``, those that meet the request's condition; None means all rows.

    Returns:
        The attribution with the shape of the whole batch, 0 in other rows. If ``rows`` is empty it has no values, and
        the model does not run.
    """
    if rows is None or len(rows) == problem.rows:
        return attribute(problem, main)
    if not rows:
        return results.AttributionResult(type(problem.request).__name__, problem.module, {})
    # Edits, the target, or what is drawn for the whole batch may have values of their own for each row.
    if problem.is_row_specific or method_of(problem.request).uses_randomness or problem.request.is_judged:
        return placed_rows(attribute(problem, main), rows, problem.rows, whole=True)
    try:
        result = attribute(*of_rows(problem, main, rows))
    except CutawayError as failure:
        if failure.reason != Reason.MODEL_FAILED:
            raise
        return placed_rows(attribute(problem, main), rows, problem.rows, whole=True)
    return placed_rows(result, rows, problem.rows, whole=False)


def attribute(problem: AttributionProblem, main: MainPass) -> results.AttributionResult:
    """Explains the rows of ``problem``; in parts, if all of them do not fit.

    Args:
        problem: the attribution and its target.
        main: the main pass of the same rows.
    """
    return in_passes_that_fit(problem, main, _attribute_any_batch)


def _attribute_any_batch(problem: AttributionProblem, main: MainPass) -> results.AttributionResult:
    """Explains ``problem``; if the model fails on batches of another size, in passes of this one."""
    try:
        return _attribute(problem, main)
    except CutawayError as failure:
        if failure.reason != Reason.MODEL_FAILED:
            raise
        try:
            return _attribute(replace(problem, batch_size=problem.rows), main)
        except CutawayError as again:
            raise (again if again.reason != Reason.MODEL_FAILED else failure) from again


def _attribute(problem: AttributionProblem, main: MainPass) -> results.AttributionResult:
    """Runs Captum, with as many steps as the request's bound on the convergence delta needs, and checks its values.

    Returns:
        The result, with the rows of every array on axis 0.
    """
    axes, path = axes_in_front(problem, main.batch), problem.request.layer_path
    shown = {problem.layer: axes.get(problem.layer, {})} if path else axes
    with axes_first(problem.model.tree, shown, path):
        result, values = _result_and_values(problem, main)
    if path:
        named = [{name + path: each for name, each in side.items()} for side in (result.values, result.references)]
        result = replace(result, values=named[0], references=named[1])
    return replace(result, tokens=token_attribution(problem, values, main.batch))


def _result_and_values(problem: AttributionProblem, main: MainPass) -> tuple[results.AttributionResult, Values]:
    """Computes the attribution; again, with zeros for some inputs, if no gradient of the target reaches these."""
    try:
        return _computed(problem, main)
    except FailedPrecondition as failure:
        unreached = _unreached(problem) if failure.reason == Reason.NOT_DIFFERENTIABLE else ()
        if not 0 < len(unreached) < len(problem.explained):
            raise
    main.recording.unreached_inputs.update(dict.fromkeys(unreached))
    return _computed(replace(problem, unreached=unreached), main)


def _unreached(problem: AttributionProblem) -> tuple[str, ...]:
    """Returns the explained inputs that no gradient of the target reaches, in a pass at the input."""
    leaves = [tensor.detach().clone().requires_grad_(tensor.is_floating_point()) for tensor in problem.arguments]
    with problem.model.unrecorded():
        scalars = problem.target.scalars(problem.forward(*leaves, *problem.additional_inputs))
        roots = [leaf for leaf in leaves if leaf.requires_grad]
        arrived = iter(gradients(scalars, roots) if scalars.requires_grad and roots else [None] * len(roots))
    reached = [leaf.requires_grad and next(arrived) is not None for leaf in leaves]
    return tuple(name for name, is_reached in zip(problem.explained, reached) if not is_reached)


def _computed(problem: AttributionProblem, main: MainPass) -> tuple[results.AttributionResult, Values]:
    """Runs Captum, with more steps until the convergence delta is within the request's bound; checks the values."""
    while True:
        values, summary, failure = _values_and_summary(problem, main)
        has_sums = problem.baselines or method_of(problem.request).satisfies_conservation
        sums = completeness_sums(problem, values, main.outputs) if has_sums else None
        finer = None if sums is None else finer_steps(problem.request, sums)
        if finer is None:
            return _checked_result(problem, main, values, summary, sums, failure), values
        problem = replace(problem, request=finer)


_Summarized: TypeAlias = tuple[Values, PassSummary | None, Exception | None]
"""Captum's values; what raw hooks saw in Captum's passes or in those of a second computation, None without a check; and
why they saw nothing."""


def _values_and_summary(problem: AttributionProblem, main: MainPass) -> _Summarized:
    """Runs Captum, and summarizes its passes or separate ones for the check. If Captum fails under our hooks, runs
    Captum again without them."""
    method = method_of(problem.request)
    mode = method.checked(main.plan.request.check).mode
    parts = consecutive(main.plan.parts or (problem.rows,))
    failure: Exception | None = None
    if mode is CheckMode.SAME_PASS:
        summary = PassSummary(problem, method, parts, of_captum=True)
        # Where Captum overrides the layer's gradient, no hook of ours may be between the two.
        recorder = PassRecorder(problem, at_layer=method.reads_captum, take=summary.add)
        with timed(main.timings, "attribution_ms"):
            try:
                values = explain(problem, recorder.forward)
                recorder.release()  # which adds the last pass
                return values, summary, None
            except Exception as fault:
                if _ends_computation(fault, problem):
                    raise
                failure = fault  # of our hooks, if Captum succeeds without them
            finally:
                recorder.recording.release()
    with timed(main.timings, "attribution_ms"):
        values = explain(problem, problem.forward)
    if mode is not CheckMode.INDEPENDENT:
        return values, None, failure
    try:
        with timed(main.timings, "check_ms"):
            return values, summarized(problem, method, parts), None
    except Exception as fault:
        if _ends_computation(fault, problem):
            raise
        return values, None, fault


def _ends_computation(failure: Exception, problem: AttributionProblem) -> bool:
    """Returns whether ``failure`` must end the computation, and not a check alone. Then the deadline expired, joined
    requests must run apart, or a run with smaller passes or more memory follows."""
    if not ran_out_of_memory(failure):
        return isinstance(failure, (CannotShare, DeadlineExceeded))
    return problem.model.has_more_memory or with_smaller_passes(problem) is not None or rows_divide(problem)


def _checked_result(
    problem: AttributionProblem,
    main: MainPass,
    values: Values,
    summary: PassSummary | None,
    sums: CompletenessSums | None,
    failure: Exception | None,
) -> results.AttributionResult:
    """Checks Captum's ``values`` against the passes, and returns them with the checks and the request's metrics.

    A check that fails, or whose passes did, with ``failure``, is inconclusive: it never costs the values.
    """
    method = method_of(problem.request)
    check = method.checked(main.plan.request.check)
    verdicts: tuple[results.Check, ...] = ()
    errors, references = Values(), Values()
    with problem.model.proofs.billed_to(main.timings), timed(main.timings, "check_ms"):
        try:
            if summary is not None and failure is None:
                verdicts, references = run_checks(problem, method, values, summary, sums, main.outputs, check)
                errors = method.standard_errors(problem)
        except Exception as fault:
            if _ends_computation(fault, problem):
                raise
            failure = fault
    if failure is not None:
        if len(main.plan.parts) > 1:
            raise CannotShare
        verdicts = (failed_check(problem, method, check, failure),)
    with timed(main.timings, "attribution_ms"):
        measured = metrics(problem, values, lambda: token_attribution(problem, values, main.batch))
    verdicts += insensitive(measured, values, check.mode)
    at_input = target_at_inputs(problem, main.outputs) if method.differentiates else None
    result = replace(attribution_result(problem, values, sums, at_input), checks=verdicts, metrics=measured)
    return replace(result, standard_errors=arrays(errors), references=arrays(references))


def attribution_result(
    problem: AttributionProblem, values: Values, sums: CompletenessSums | None, at_input: Tensor | None
) -> results.AttributionResult:
    """Returns the result from values, both sides of completeness and the target of each row, without its checks."""
    request, method = problem.request, method_of(problem.request)
    classes = problem.target.classes if method.differentiates else None
    return results.AttributionResult(
        method=type(request).__name__,
        layer=problem.module,
        values=arrays(values),
        convergence_delta=to_numpy(sums.delta) if sums is not None and method.adds_up(problem) else None,
        value_at_input=None if at_input is None else to_numpy(at_input),
        value_at_baseline=None if sums is None or method.satisfies_conservation else to_numpy(sums.at_baseline),
        targets=None if classes is None else to_numpy(classes),
        n_steps=request.n_steps if isinstance(request, PathAttribution) else 0,
        inputs_left_out=left_out(problem),
        features=arrays(regions_found(request, problem.features, problem.rows)),
    )


def inspect(
    model: InspectedModel, request: InspectRequest, inputs: Inputs, *, cancellation: Cancellation = NEVER_CANCELLED
) -> results.InspectResult:
    """Answers ``request``; afterwards the model is as before.

    Hooks are state of the model: the caller makes sure that nothing else uses it meanwhile.

    Args:
        model: the model.
        request: the request.
        inputs: its tensors, ``[batch, ...]`` each, on the model's device.
        cancellation: when the caller stops waiting; no pass begins later.

    Raises:
        CutawayError: the request cannot be answered.
    """
    again = planned_before(model, request, inputs, cancellation)
    return run_plan(again or kept_plan(plan_request(model, request, inputs, cancellation), request))


def run_plan(plan: RequestPlan, tell: Tell | None = None) -> results.InspectResult:
    """Answers the request of ``plan``, as `inspect`; see `finish` for ``tell``."""
    plan.model.passes.reset()
    with plan.model.session(plan.cancellation, plan.request.arguments), plan.model.drawing_from(plan.seed):
        if (again := answered_again(plan)) is not None:
            return again
        plan = with_unread_inputs(plan)
        if plan.request.generate:
            return generate(plan, tell)
        unedited = _run_unedited(plan) if plan.request.compare else {}
        return finish(main_pass_that_fits(plan), unedited, tell)  # hook, forward, backward


def _run_unedited(plan: RequestPlan) -> Outputs:
    """Returns what the model returns without edits, in the same grad mode and with the same random numbers."""
    with plan.model.kept_rng_state(), torch.set_grad_enabled(plan.differentiates):
        return {name: output.detach().clone() for name, output in plan.model.run(plan.inputs).items()}


def finish(main: MainPass, unedited: Outputs | None = None, tell: Tell | None = None) -> results.InspectResult:
    """Computes and checks the attributions of a request whose main pass has run, and returns its result.

    Args:
        main: the main pass; the model is still in its session.
        unedited: what the model returns without edits, where the request compares.
        tell: called with the result so far, which only grows: first without attributions, then after each of them.
    """
    result, groups = collect_main_pass(main, unedited or {}), list[tuple[results.AttributionResult, ...]]()
    if tell is not None:
        tell(result)
    for several in run_attributions(main):
        groups.append(several)
        if tell is not None:
            tell(with_attributions(result, [*chain(*groups)], main))
    result = with_agreements(with_attributions(result, [*chain(*groups)], main), groups, main)
    result = with_influence(with_concepts(with_direct(with_sweep(result, main), main), main), main)
    result = with_counterfactual(with_attacks(result, main, run_attributions), main)
    return remembered(main, whole_result(result, main))
