"""What a reply would be: one forward pass that keeps shapes and no numbers.

A gradient has the shape of the value at its place, an explanation that of the inputs or of what its layer returns.
What a request is refused for before its backward pass it is refused for here, by the same code.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from cutaway.engine import hollow
from cutaway.engine.absent import capture_warnings, edit_warnings, refuse_captures, refuse_edits, settled
from cutaway.engine.arrays import to_numpy
from cutaway.engine.collect import captures, classes
from cutaway.engine.conditions import left_out
from cutaway.engine.cost import costs
from cutaway.engine.hooks import observing
from cutaway.engine.outlook import explanations, looked_at
from cutaway.engine.patience import ENDLESS, Patience
from cutaway.engine.plan import Plan, plan, rows
from cutaway.engine.primary import alive, forward, taps, target, targets_of, values_of
from cutaway.engine.run import at_work, plain, provenance, refuse_silent_layers
from cutaway.engine.seen import Gradients, Seen, stacked
from cutaway.engine.subject import Inputs, Outputs, Subject
from cutaway.engine.timed import timed
from cutaway.engine.wishes import Wish
from cutaway.errors import at
from cutaway.requests import InspectRequest, Point, TopK
from cutaway.results import Estimate, InspectResult, Timings
from cutaway.tensors import Array, cast

_VALUES = {Point.GRAD_INPUT: Point.INPUT, Point.GRAD_OUTPUT: Point.OUTPUT}


def estimate(
    subject: Subject, request: InspectRequest, inputs: Inputs, *, patience: Patience = ENDLESS
) -> InspectResult:
    """What `cutaway.engine.run.inspect` would answer, in data types and shapes: but for predictions and what is told
    from them, all tensors are zeros that take no memory. A gradient that would not arrive is there as well. Of its own
    estimate it says the passes.

    Args:
        subject: the model.
        request: the question.
        inputs: its tensors, on the model's device.
        patience: how long the caller waits; no pass begins later.

    Raises:
        CutawayError: the request cannot be answered, as far as one forward pass tells.
    """
    timings = Timings()
    passes = sum(count for _, count in costs(subject, request, inputs, patience=patience))
    subject.passes.reset()
    with at_work(subject, patience), torch.no_grad():
        given = plain(inputs)
        todo = plan(subject, request, given)
        wanted = taps(subject, request, todo)
        with (
            observing(
                subject.tree, _values(wanted), todo.edits, batch=rows(given), alive=alive(subject, request)
            ) as seen,
            observing(subject.tree, _gradients(wanted)) as beneath,
            observing(subject.tree, looked_at(subject, request)) as layers,
        ):
            seen.missing = todo.missing
            with timed(timings, "forward_ms"), beneath.forward(), layers.forward():
                outputs = forward(subject, given, seen)
            wanted = settled(todo, seen)
            refuse_edits(todo, seen, subject.tree)
            refuse_captures(wanted, seen, subject.tree)
            chosen, read = target(subject, request, outputs, seen, todo, rows(given))
            targets, values = targets_of(request.target, chosen), values_of(request.target, chosen, read)
        refuse_silent_layers(request, subject, seen)
        explained = tuple(explanations(subject, request, given, todo, outputs, layers))
        _fill(wanted, seen, beneath, _times(request))
    shown = {} if request.omit_predictions else outputs
    return InspectResult(
        predictions=_predictions(shown, request, "predictions"),
        classes=classes(subject, shown),
        targets=None if targets is None else to_numpy(targets),
        target_values=None if values is None else to_numpy(values),
        captures=captures(wanted, seen.calls),
        input_gradients=_input_gradients(todo, given, request),
        parameter_gradients=_parameter_gradients(subject, todo, request),
        attributions=explained,
        unedited=_predictions(outputs, request, "unedited") if request.compare else {},
        unedited_classes=classes(subject, outputs) if request.compare else (),
        warnings=(
            *capture_warnings(wanted, seen, subject.tree),
            *edit_warnings(_of_values(todo), seen, seen.effects),
            *left_out(request.explain_if, classes(subject, outputs)),
        ),
        provenance=replace(provenance(subject), seed=todo.seed or 0),
        timings=timings,
        estimate=Estimate(0, {}, passes),
    )


Taps = dict[str, dict[Point, Wish]]


def _values(wanted: Taps) -> Taps:
    """``wanted``, of which only shapes are kept."""
    return {
        name: {point: wish if point.is_gradient else hollow.OfValue(**vars(wish)) for point, wish in wishes.items()}
        for name, wishes in wanted.items()
    }


def _gradients(wanted: Taps) -> Taps:
    """The shapes of the gradients that are ``wanted``, at their values."""
    found: Taps = {
        name: {_VALUES[point]: hollow.OfGradient(**vars(wish)) for point, wish in wishes.items() if point.is_gradient}
        for name, wishes in wanted.items()
    }
    return {name: wishes for name, wishes in found.items() if wishes}


def _times(request: InspectRequest) -> int:
    """How often each gradient comes: of a top-k target k times. 0 is once, without an axis of its own."""
    return request.target.k if isinstance(request.target, TopK) else 0


def _fill(wanted: Taps, seen: Seen, beneath: Seen, times: int) -> None:
    """Zeros for everything that was seen, and for every gradient."""
    for name, wishes in wanted.items():
        for call, below in zip(seen.calls[name], beneath.calls.get(name, [])):
            found: Gradients = {
                point: {
                    path: part for path, part in below.parts(_VALUES[point]).items() if hollow.has_gradient(part.values)
                }
                for point in wishes
                if point.is_gradient
            }
            call.put_gradients(stacked([found] * times) if times else found)
        for call in seen.calls[name]:
            for point, path, part in [*call.noted()]:
                call.put(point, path, None if part is None else hollow.filled(part))


def _predictions(outputs: Outputs, request: InspectRequest, place: str) -> dict[str, Array]:
    with at("options.reply_data_type"):
        return {
            name: cast(to_numpy(output), request.reply_data_type, f"{place}.{name}") for name, output in outputs.items()
        }


def _input_gradients(todo: Plan, inputs: Inputs, request: InspectRequest) -> dict[str, Array]:
    times = _times(request)
    shapes = {name: inputs[name].shape for name in todo.gradients_of}
    return {
        name: hollow.array((*shape[:1], times, *shape[1:]) if times else shape, inputs[name], request.reply_data_type)
        for name, shape in shapes.items()
    }


def _parameter_gradients(subject: Subject, todo: Plan, request: InspectRequest) -> dict[str, Array]:
    times, found = _times(request), {}
    for name, wish in todo.parameters.items():
        part = hollow.OfGradient(**vars(wish)).of(subject.module.get_parameter(name), name).values
        found[name] = hollow.array((times, *part.shape) if times else part.shape, part)
    return found


def _of_values(todo: Plan) -> Plan:
    """Without edits of gradients, of which no forward pass says whether they change anything."""
    edits = {name: [each for each in several if not each[1].point.is_gradient] for name, several in todo.edits.items()}
    return replace(todo, edits=edits)
