"""Estimates a reply: runs one forward pass that keeps shapes and no values.

A gradient has the shape of the value at its point, an attribution that of the inputs or of what its layer returns. A
request that is refused before its backward pass is refused here too, by the same code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from cutaway.engine.dry_run.attribution_shapes import attribution_sites, estimate_attributions
from cutaway.engine.dry_run.pass_count import costs
from cutaway.engine.execution.collect import arrays, collect_result
from cutaway.engine.execution.main_pass import MainPass, check_forward, run_forward
from cutaway.engine.hooks import shape_only
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.recording import Gradients, Recording, stack_gradients
from cutaway.engine.passes.pass_recorder import Values
from cutaway.engine.planning.name_resolution import CaptureSites
from cutaway.engine.planning.plan import Plan
from cutaway.errors import at
from cutaway.requests import Point, TopK
from cutaway.results import Estimate, InspectResult, Timings
from cutaway.schema.tensors import Array, cast

_VALUES = {Point.GRAD_INPUT: Point.INPUT, Point.GRAD_OUTPUT: Point.OUTPUT}


def estimate(plan: Plan) -> InspectResult:
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
        values, gradients = _value_sites(plan.hook_sites), _gradient_sites(plan.hook_sites)
        with (
            observing(model.tree, values, plan.edits, batch=plan.rows, keep_output_of=plan.neuron) as recording,
            observing(model.tree, gradients) as at_gradients,
            observing(model.tree, attribution_sites(plan)) as at_attributions,
        ):
            with at_gradients.forward(), at_attributions.forward():
                outputs = run_forward(plan, plan.inputs, recording, timings)
            main = check_forward(plan, outputs, recording, timings)._replace(
                # Whether the edit of a gradient changes anything, only a backward pass shows.
                plan=replace(plan, edits=plan.value_edits),
                input_gradients=_input_gradients(plan),
                parameter_gradients=_parameter_gradients(plan),
            )
        attributions = estimate_attributions(main, at_attributions)
        _fill(main, at_gradients)
    result = collect_result(main, attributions, unedited={})
    return replace(
        result,
        predictions=_typed(result.predictions, plan, "predictions"),
        unedited=_typed(arrays(outputs), plan, "unedited") if plan.request.compare else {},
        unedited_classes=main.predictions if plan.request.compare else (),
        estimate=Estimate(0, {}, passes),
    )


def _value_sites(sites: CaptureSites) -> CaptureSites:
    """Returns ``sites`` with specs that keep only shapes; those of gradients record nothing in a forward pass."""
    return {
        name: {point: shape_only.ValueShape(**vars(spec)) for point, spec in specs.items()}
        for name, specs in sites.items()
    }


def _gradient_sites(sites: CaptureSites) -> CaptureSites:
    """Returns the gradients of ``sites``, at the points of their values, with specs that keep only shapes."""
    return {
        name: {_VALUES[point]: shape_only.GradientShape(**vars(specs[point])) for point in specs if point.is_gradient}
        for name, specs in sites.items()
        if any(point.is_gradient for point in specs)
    }


def _fill(main: MainPass, at_gradients: Recording) -> None:
    """Puts zeros of the recorded shapes in the place of all captures."""
    for name, specs in main.sites.items():
        for call, shapes in zip(main.recording.calls[name], at_gradients.calls.get(name, [])):
            gradients: Gradients = {
                point: {
                    path: part
                    for path, part in shapes.captured(_VALUES[point]).items()
                    if shape_only.has_gradient(part.values)
                }
                for point in specs
                if point.is_gradient
            }
            axis = _class_axis(main.plan)
            call.put_gradients(stack_gradients([gradients] * axis[0]) if axis else gradients)
        for call in main.recording.calls[name]:
            for point, path, part in [*call.entries()]:
                call.store(point, path, None if part is None else shape_only.with_zeros(part))


def _class_axis(plan: Plan) -> tuple[int, ...]:
    """Returns ``(k,)``, the additional axis of gradients of a top-k target; else ``()``."""
    return (plan.request.target.k,) if isinstance(plan.request.target, TopK) else ()


def _input_gradients(plan: Plan) -> Values:
    inputs = {name: plan.inputs[name] for name in plan.gradients_of}
    return {
        name: shape_only.expanded_zeros(
            (*tensor.shape[:1], *_class_axis(plan), *tensor.shape[1:]), tensor, plan.request.reply_data_type
        )
        for name, tensor in inputs.items()
    }


def _parameter_gradients(plan: Plan) -> Values:
    parts = {
        name: shape_only.GradientShape(**vars(spec)).apply(plan.model.module.get_parameter(name), name).values
        for name, spec in plan.parameters.items()
    }
    return {name: shape_only.expanded_zeros((*_class_axis(plan), *part.shape), part) for name, part in parts.items()}


def _typed(predictions: Mapping[str, Array], plan: Plan, place: str) -> dict[str, Array]:
    """Returns ``predictions`` in the data type of the reply, which must be able to hold them."""
    with at("options.reply_data_type"):
        return {
            name: cast(array, plan.request.reply_data_type, f"{place}.{name}") for name, array in predictions.items()
        }
