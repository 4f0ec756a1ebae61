"""Estimates a reply, and the memory of a request: runs forward passes that keep shapes and no values.

A gradient has the shape of the value at its point, an attribution that of the inputs or of what its layer returns. A
request that is refused before its backward pass is refused here too, by the same code.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cutaway.contract import requests
from cutaway.contract.errors import CutawayError, at
from cutaway.contract.requests.captures import names_weights
from cutaway.contract.results import (
    AttackResult,
    AttributionResult,
    Check,
    CounterfactualResult,
    Estimate,
    InspectResult,
    Timings,
    Verdict,
)
from cutaway.contract.results.arrays import array_fields
from cutaway.contract.results.changes import AttackedAttribution
from cutaway.contract.tensors import Array, cast
from cutaway.engine.checks.completeness import compared_sums
from cutaway.engine.cost import pass_count
from cutaway.engine.cost.pass_count import costs
from cutaway.engine.execution.agreement import with_agreements
from cutaway.engine.execution.attacks import attack_checks, loss_of
from cutaway.engine.execution.collect import (
    arrays,
    axes_in_front,
    collect_main_pass,
    in_own_axes,
    qualifying_rows,
    token_attribution,
    whole_result,
    with_attributions,
)
from cutaway.engine.execution.concepts import estimated as concept_results
from cutaway.engine.execution.counterfactual import loss_to_cross, outline_checks, possible_changes
from cutaway.engine.execution.influence import estimated as influence_result
from cutaway.engine.execution.inspect import attribution_result, each_attribution, problems
from cutaway.engine.execution.main_pass import MainPass, batch_of, check_forward, run_forward
from cutaway.engine.execution.row_parts import plan_divides
from cutaway.engine.execution.sweep import direct_parts, swept
from cutaway.engine.hooks.capture_spec import CaptureSpec, ShapeSpec
from cutaway.engine.hooks.hook_site import VALUE_POINTS
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.recording import Gradients, Recording, stack_gradients
from cutaway.engine.methods.captum_call import method_of
from cutaway.engine.methods.metrics import outlines
from cutaway.engine.model.inspected_model import Outputs, arguments_kind
from cutaway.engine.passes.pass_memory import LiveBytes
from cutaway.engine.passes.pass_recorder import AttributionProblem, Values, concatenated, neuron_output
from cutaway.engine.passes.reference_inputs import CompletenessSums, layer_value_name
from cutaway.engine.planning.plan import CaptureSites, RequestPlan
from cutaway.engine.runtime.numerics import to_numpy

# The shapes of attributions, from one forward pass without Captum.

_IN_FLOAT32 = (requests.Occlusion, requests.ShapleyValues, requests.ShapleyValueSampling, requests.Surrogate)
"""Methods that Captum computes in float32, for every data type of the model."""


def attribution_sites(plan: RequestPlan) -> CaptureSites:
    """Returns what must be recorded for attributions: the shapes of modules' outputs, and token ids of embeddings."""
    sites: CaptureSites = {}
    for attribution in plan.attributions:
        tree = attribution.model.tree
        targets = (attribution.request.target, plan.request.target)
        neurons = [tree.resolve(target.module) for target in targets if isinstance(target, requests.Neuron)]
        for name in (*attribution.modules, *neurons):
            is_embedding = isinstance(tree.modules[name], nn.Embedding)
            ids = {requests.Point.INPUT: CaptureSpec()} if is_embedding else {}
            sites[name] = {requests.Point.OUTPUT: ShapeSpec(), **ids}
    return sites


def estimate_attributions(main: MainPass, recording: Recording) -> list[tuple[AttributionResult, ...]]:
    """Returns the attributions that a request would get, all of them zeros, in the order of the request.

    Args:
        main: the request's main pass, a forward pass only.
        recording: what was recorded of `attribution_sites` in that pass.

    Raises:
        CutawayError: an attribution is not possible, as far as no further pass is needed to know.
    """
    rows = qualifying_rows(main) if main.plan.attributions else None

    def read_neuron(module: str) -> Tensor:
        parts = [part for call in recording.calls[module] for part in call.captured(requests.Point.OUTPUT).values()]
        return neuron_output(pass_count.with_zeros(parts[0]).values if parts else None, module)

    def compute(index: int) -> Iterator[AttributionResult]:
        for problem in problems(main, index, read_neuron):
            yield in_own_axes(_estimate(problem, main, recording, rows), problem, main.batch)

    return [*each_attribution(main, compute)]


def _estimate(
    problem: AttributionProblem, main: MainPass, recording: Recording, rows: Sequence[int] | None
) -> AttributionResult:
    """Returns one attribution of a dry run: zeros in the shapes of the real one, without a run of Captum."""
    method = method_of(problem.request)
    method.attribute_arguments(problem)  # which may refuse the target
    if rows is not None and not rows:
        return AttributionResult(type(problem.request).__name__, problem.module, {})
    values = _values(problem, main, recording)
    by_row = torch.zeros(problem.rows, dtype=torch.float64)
    has_sums = problem.baselines or method.satisfies_conservation
    sums = CompletenessSums(by_row, by_row, by_row, by_row) if has_sums else None
    return replace(
        attribution_result(problem, values, sums, by_row if method.differentiates else None),
        checks=tuple(_checks(problem, main.plan.request.check.mode)),
        standard_errors=_standard_errors(problem, main),
        references=_references(values, main),
        tokens=token_attribution(problem, values, main.batch, next(iter(recording.calls.get(problem.layer, ())), None)),
        metrics=outlines(problem),
        attribution_ms=1.0,  # a time of 0 takes no bytes
        check_ms=1.0,
    )


def _standard_errors(problem: AttributionProblem, main: MainPass) -> dict[str, Array]:
    if main.plan.request.check.mode is requests.CheckMode.OFF or not isinstance(problem.request, requests.Surrogate):
        return {}
    double, data_type = torch.empty(0, dtype=torch.float64), main.plan.request.reply_data_type
    inputs = zip(problem.explained, problem.arguments)
    return arrays({name: pass_count.expanded_zeros(tensor.shape, double, data_type) for name, tensor in inputs})


def _references(values: Values, main: MainPass) -> dict[str, Array]:
    if not main.plan.request.check.references:
        return {}
    double, data_type = torch.empty(0, dtype=torch.float64), main.plan.request.reply_data_type
    return arrays({name: pass_count.expanded_zeros(value.shape, double, data_type) for name, value in values.items()})


def _values(problem: AttributionProblem, main: MainPass, recording: Recording) -> Values:
    """Returns zeros in the shapes of the attribution, by input, or for a layer method by tensor of the layer."""

    def zeros(shape: Sequence[int], like: Tensor) -> Tensor:
        return pass_count.expanded_zeros(shape, like, main.plan.request.reply_data_type)

    if not isinstance(problem.request, requests.LayerAttribution):
        inputs = zip(problem.explained, problem.arguments)
        return {
            name: zeros(tensor.shape, _with_its_dtype(problem, tensor, main.outputs, recording))
            for name, tensor in inputs
        }
    shapes: Values = {}
    for layer in problem.layers:
        at_layer = recording.calls[layer][-1].at(requests.Point.OUTPUT)  # of several calls Captum keeps the last
        axes = axes_in_front(problem, main.batch).get(layer, {})
        for index, (path, tensor) in enumerate(at_layer.items()):
            if problem.request.layer_path not in ("", path):
                continue
            if path in axes:
                tensor = tensor.movedim(axes[path], tuple(range(len(axes[path]))))
            by_index = "" if len(at_layer) == 1 else f"[{index}]"
            name = layer_value_name(layer, problem.request.layer_path or by_index)
            sums_channels = isinstance(problem.request, requests.LayerGradCam)
            shapes[name] = zeros((*tensor.shape[:1], 1, *tensor.shape[2:]) if sums_channels else tensor.shape, tensor)
    return shapes


def _with_its_dtype(problem: AttributionProblem, explained: Tensor, outputs: Outputs, recording: Recording) -> Tensor:
    """Returns a tensor with the data type of Captum's attribution of the input ``explained``.

    That is float32 for some methods, the target's for other perturbations, and the input's for gradients.
    """
    if isinstance(problem.request, _IN_FLOAT32):
        return torch.empty(0, dtype=torch.float32)
    if not isinstance(problem.request, requests.Perturbation):
        return explained
    if not problem.target.is_neuron:
        return outputs[problem.target.source]
    return next(iter(recording.calls[problem.target.source][0].at(requests.Point.OUTPUT).values()))


def _checks(problem: AttributionProblem, mode: requests.CheckMode) -> Iterator[Check]:
    """Yields the checks of an attribution that agrees."""
    if mode is not requests.CheckMode.OFF:
        method, agreement = method_of(problem.request), (mode, 1.0, 1.0, 1.0, 1.0, Verdict.AGREES)
        yield Check(f"Captum's {type(problem.request).__name__} with {method.formula}", *agreement)
        if method.adds_up(problem):
            yield Check(compared_sums(method), *agreement)


def estimate(plan: RequestPlan) -> InspectResult:
    """Returns the result that the request of ``plan`` would have, in data types and shapes.

    Predictions, and the values computed from them alone, are real; every other tensor is zeros that take no memory.
    A gradient is listed also where the backward pass would not reach its tensor.

    Raises:
        CutawayError: the request cannot be answered, as far as one forward pass shows.
    """
    passes, model = sum(count for _, count in costs(plan)), plan.model
    timings = Timings()
    model.passes.reset()
    with model.session(plan.cancellation, plan.request.arguments), torch.no_grad():
        batch = batch_of(plan)
        values, gradients = _value_sites(plan.hook_sites), _gradient_sites(plan.hook_sites)
        with (
            observing(model.tree, values, plan.edits, batch=batch, keep_output_of=plan.neuron) as recording,
            observing(model.tree, gradients, batch=batch) as at_gradients,
            observing(model.tree, attribution_sites(plan)) as at_attributions,
        ):
            with at_gradients.forward(), at_attributions.forward():
                outputs = run_forward(plan, plan.inputs, recording, timings)
            main = check_forward(plan, outputs, recording, timings, batch)._replace(
                # Whether the edit of a gradient changes anything, only a backward pass shows.
                plan=replace(plan, edits=plan.value_edits),
                input_gradients=_input_gradients(plan),
                parameter_gradients=_parameter_gradients(plan),
            )
        groups = estimate_attributions(main, at_attributions)
        attributions = tuple(chain(*groups))
        sweep, attacks, concepts = _sweep(plan), _attacks(main, attributions), concept_results(plan)
        counterfactual = _counterfactual(main)
        _fill(main, at_gradients)
    result = with_attributions(collect_main_pass(main, {}), attributions, main)
    result = whole_result(with_agreements(result, groups, main), main)
    return replace(
        result,
        predictions=_typed(result.predictions, plan, ""),
        unedited=_typed(arrays(outputs), plan, "unedited:") if plan.request.compare else {},
        unedited_classes=main.predictions if plan.request.compare else (),
        **sweep,
        **_direct(plan),
        attacks=attacks,
        counterfactual=counterfactual,
        concepts=concepts,
        influence=influence_result(plan),
        estimate=Estimate(0, {}, passes),
    )


def _sweep(plan: RequestPlan) -> dict[str, Any]:
    """Returns the fields of a result with the grid of a sweep."""
    asked = plan.request.sweep
    if asked is None:
        return {}
    zeros = torch.zeros((), dtype=torch.float64)
    grid = {
        name: to_numpy(pass_count.expanded_zeros((plan.rows, len(where.places)), zeros))
        for name, where in swept(plan, asked).items()
    }
    if not asked.estimate:
        return {"sweep": grid}
    return {"sweep": grid, "sweep_estimates": grid, "sweep_agreement": to_numpy(zeros.expand(plan.rows))}


def _direct(plan: RequestPlan) -> dict[str, Any]:
    """Returns the fields of a result with the parts of a stream."""
    asked = plan.request.direct
    if asked is None:
        return {}
    zeros, shapes = torch.zeros((), dtype=torch.float64), direct_parts(plan.model.tree, asked)
    by_row = to_numpy(zeros.expand(plan.rows))
    parts = {
        name: to_numpy(pass_count.expanded_zeros((plan.rows, *heads[:1]), zeros)) for name, heads in shapes.items()
    }
    return {"direct": parts, "direct_rest": by_row, "direct_bias": by_row}


def _attacks(main: MainPass, explained: Sequence[AttributionResult]) -> tuple[AttackResult, ...]:
    """Returns the results of attacks, with zeros, and with ``explained``, the attributions.

    Raises:
        CutawayError: with the attack at fault.
    """
    plan, found = main.plan, []
    numbers = {name: field.number for name, field in array_fields(AttackResult).items() if field.number}
    rows = {name: np.zeros(plan.rows, number) for name, number in numbers.items()}
    beside = tuple(AttackedAttribution(each, *[np.zeros(plan.rows)] * 2) for each in explained)
    for number, attack in enumerate(plan.request.attacks):
        with at(f"attacks[{number}]"):
            loss = loss_of(attack, main)
        left = {*(["parameters"] * (attack.search is None)), *(["succeeded"] * (not loss.classifies))}
        left |= {*(["classes", "probabilities"] * (not (loss.classifies or main.predictions)))}
        inputs = arrays({name: plan.inputs[name] for name in plan.attacks[number].explained})
        outputs = {} if plan.request.omit_predictions else arrays(main.outputs)
        checks = attack_checks(attack, plan.request.check.mode)
        shown = {name: zeros for name, zeros in rows.items() if name not in left}
        found.append(AttackResult(type(attack).__name__, inputs, outputs, checks=checks, attributions=beside, **shown))
    return tuple(found)


def _counterfactual(main: MainPass) -> CounterfactualResult | None:
    """Returns the result of a counterfactual, with zeros."""
    plan = main.plan
    if plan.request.counterfactual is None:
        return None
    possible = possible_changes(plan)
    with at("counterfactual"):
        loss_to_cross(main)
    fields = array_fields(CounterfactualResult).items()
    rows = {name: np.zeros(plan.rows, field.number) for name, field in fields if field.number}
    inputs = arrays({name: plan.inputs[name] for name in possible.names})
    others = {name: np.zeros(array.shape, np.bool_) for name, array in inputs.items()}
    outputs = {} if plan.request.omit_predictions else arrays(main.outputs)
    return CounterfactualResult(inputs, others, outputs, checks=outline_checks(plan.request.check.mode), **rows)


def _value_sites(sites: CaptureSites) -> CaptureSites:
    """Returns ``sites`` with specs that keep only shapes; those of gradients record nothing in a forward pass."""
    return {name: {point: ShapeSpec(**vars(spec)) for point, spec in specs.items()} for name, specs in sites.items()}


def _gradient_sites(sites: CaptureSites) -> CaptureSites:
    """Returns the gradients of ``sites``, at the points of their values, with specs that keep only shapes."""
    return {
        name: {
            VALUE_POINTS[point]: pass_count.GradientShape(**vars(specs[point])) for point in specs if point.is_gradient
        }
        for name, specs in sites.items()
        if any(point.is_gradient for point in specs)
    }


def _fill(main: MainPass, at_gradients: Recording) -> None:
    """Puts zeros of the recorded shapes in the place of all captures."""
    for name, specs in main.sites.items():
        for call, shapes in zip(main.recording.calls[name], at_gradients.calls.get(name, [])):
            gradients: Gradients = {}
            for point in (point for point in specs if point.is_gradient):
                parts = shapes.captured(VALUE_POINTS[point]).items()
                gradients[point] = {path: part for path, part in parts if pass_count.has_gradient(part.values)}
            axis = _class_axis(main.plan)
            call.put_gradients(stack_gradients([gradients] * axis[0]) if axis else gradients)
        for call in main.recording.calls[name]:
            for point, path, part in [*call.entries()]:
                call.store(point, path, None if part is None else pass_count.with_zeros(part))


def _class_axis(plan: RequestPlan) -> tuple[int, ...]:
    """Returns ``(k,)``, the additional axis of gradients of a target of k scalars; else ``()``."""
    return (plan.scalars,) if plan.scalars else ()


def _input_gradients(plan: RequestPlan) -> Values:
    zeros: Values = {}
    for name in plan.gradients_of:
        rows, *axes = plan.inputs[name].shape
        shape = (rows, *_class_axis(plan), *axes)
        zeros[name] = pass_count.expanded_zeros(shape, plan.inputs[name], plan.request.reply_data_type)
    return zeros


def _parameter_gradients(plan: RequestPlan) -> Values:
    zeros: Values = {}
    for name, spec in plan.parameters.items():
        part = pass_count.GradientShape(**vars(spec)).apply(plan.model.module.get_parameter(name), name, None)
        zeros[name] = pass_count.expanded_zeros((*_class_axis(plan), *part.values.shape), part.values)
    return zeros


def _typed(predictions: Mapping[str, Array], plan: RequestPlan, prefix: str) -> dict[str, Array]:
    """Returns ``predictions`` in the data type of the reply, which must be able to hold them."""
    data_type = plan.request.reply_data_type
    with at("options.reply_data_type"):
        return {name: cast(array, data_type, f"{prefix}{name}") for name, array in predictions.items()}


# The least memory of the activations of a batch, before a request runs.

FEW_ROWS = 32
"""Smaller requests are not estimated: three rows more would cost them too much."""


_PART = 4
"""The part of the allowed bytes that the rows may take that show whether a refusal is right."""


def least_bytes(plan: RequestPlan, allowed: int) -> int:
    """Returns the least bytes that the request's batch takes; 0 where that is not known.

    The model runs on the first row once and twice, once for each kind of rows: what the second one adds, every row
    takes. Counted are tensors that are alive at the same time, and captures of whole outputs of modules. The workspace
    of kernels is not seen. Several passes need no more, because they run one after the other.

    Where that is more than ``allowed``, the model runs on many rows too: one that divides its batch takes less. Rows
    that may run apart take what one takes at work, and what of all of them is in the reply.
    """
    if plan.rows < FEW_ROWS or plan.missing is not None:  # a pass that stops early takes less
        return 0
    try:
        one, two = _bytes_of(plan, 1), _bytes_of(plan, 2)
        row = max(1, two.most - one.most)
        if plan.rows * row > allowed:
            many = max(2, min(plan.rows, allowed // _PART // row))
            row = min(row, (_bytes_of(plan, many).most - one.most) // (many - 1))
        if plan.rows * row > allowed and _divides(plan):
            return row + plan.rows * one.replied
        return plan.rows * row
    except CutawayError:  # the request itself gets this error, in its place
        return 0


class _Bytes(NamedTuple):
    """The most bytes of all tensors at one time of a forward pass, and those of captures and outputs."""

    most: int
    replied: int


def _divides(plan: RequestPlan) -> bool:
    with plan.model.session(plan.cancellation, plan.request.arguments):
        return plan_divides(plan)


def _bytes_of(plan: RequestPlan, copies: int) -> _Bytes:
    return plan.model.remembered((kind_of_request(plan), copies), lambda: _most_bytes(plan, copies))


def kind_of_request(plan: RequestPlan) -> Hashable:
    """Returns what requests have in common whose rows take the same memory."""
    tensors = tuple((name, tensor.dtype, tensor.shape[1:]) for name, tensor in plan.inputs.items())
    return "bytes", tensors, arguments_kind(plan.request.arguments), _runs_backward(plan), tuple(_captured(plan))


def _runs_backward(plan: RequestPlan) -> bool:
    differentiates = plan.differentiates or plan.request.concepts is not None or plan.training is not None
    return differentiates or any(method_of(part.request).runs_backward for part in plan.attributions)


def _captured(plan: RequestPlan) -> Iterator[tuple[str, bool]]:
    """Yields the modules whose whole output is kept for the reply, and weights of attention, with whether all of them
    are kept: they are computed whole."""
    for name, specs in plan.sites.items():
        is_whole = specs.get(requests.Point.OUTPUT) in (CaptureSpec(), CaptureSpec(of_weights=True))
        if names_weights(name) or (name in plan.model.tree.modules and is_whole):
            yield name, is_whole


def _most_bytes(plan: RequestPlan, copies: int) -> _Bytes:
    """Returns the bytes of a forward pass of ``copies`` of the first row."""
    model, backward = plan.model, _runs_backward(plan)
    whole, shape = CaptureSpec(), ShapeSpec()
    kept = {name: {requests.Point.OUTPUT: whole if is_whole else shape} for name, is_whole in _captured(plan)}
    with model.session(plan.cancellation, plan.request.arguments), model.unrecorded():
        inputs = concatenated([{name: tensor[:1] for name, tensor in plan.inputs.items()}] * copies)
        if backward:
            inputs = {name: x.requires_grad_() if x.is_floating_point() else x for name, x in inputs.items()}
        with torch.set_grad_enabled(backward), LiveBytes() as live, observing(model.tree, kept) as recording:
            live.ignore([*model.module.parameters(), *model.module.buffers(), *inputs.values()])
            with recording.forward():
                outputs = model.run(inputs)
    entries = (entry for calls in recording.calls.values() for call in calls for entry in call.entries())
    captured = (part.values for *_, part in entries if part is not None and not part.values.is_meta)
    return _Bytes(live.most, sum(tensor.nbytes for tensor in (*outputs.values(), *captured)))
