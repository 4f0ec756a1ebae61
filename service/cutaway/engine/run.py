"""One request through one model: plan, hook, forward, backward, collect, attribute, check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType

import captum
import torch

from cutaway.engine.absent import capture_warnings, comparison_warnings, edit_warnings, gradient_warnings
from cutaway.engine.arrays import to_numpy
from cutaway.engine.attributions import attributions
from cutaway.engine.collect import captures, classes
from cutaway.engine.conditions import left_out
from cutaway.engine.patience import ENDLESS, Patience
from cutaway.engine.plan import Plan, plan
from cutaway.engine.primary import Primary, modules_of, primary
from cutaway.engine.rows import coupling
from cutaway.engine.seen import Seen
from cutaway.engine.subject import Inputs, Outputs, Subject
from cutaway.engine.witness import Values
from cutaway.errors import Reason, error
from cutaway.requests import (
    InspectRequest,
    TopK,
    field_name,
)
from cutaway.results import AttributionResult, InspectResult, Provenance, Timings
from cutaway.tensors import Array


def inspect(
    subject: Subject, request: InspectRequest, inputs: Inputs, *, patience: Patience = ENDLESS
) -> InspectResult:
    """Answer ``request`` about ``inputs``; afterwards the model is as it was.

    The caller sees to it that nothing else uses the model meanwhile: hooks are state of the model.

    Args:
        subject: the model.
        request: the question.
        inputs: its tensors, on the model's device.
        patience: how long the caller waits; no pass begins later.

    Raises:
        CutawayError: the request cannot be answered; nothing was kept.
    """
    timings = Timings()
    subject.passes.reset()
    with at_work(subject, patience):
        given = plain(inputs)
        todo = plan(subject, request, given)
        unedited = _unedited(subject, given, todo) if request.compare else {}
        first = primary(subject, request, given, todo, timings)
        return answer(subject, request, given, todo, first, unedited, timings)


def plain(inputs: Inputs) -> Inputs:
    """``inputs`` as tensors that can be differentiated: those made under inference_mode cannot."""
    return {name: tensor.clone() if tensor.is_inference() else tensor for name, tensor in inputs.items()}


@contextmanager
def at_work(subject: Subject, patience: Patience = ENDLESS) -> Iterator[None]:
    """Whatever grad mode the caller is in, and whatever happens: the model is as before afterwards. No pass begins
    that nobody waits for."""
    with torch.inference_mode(False), torch.enable_grad(), subject.guard.untouched(), subject.waited_for(patience):
        yield


def answer(
    subject: Subject,
    request: InspectRequest,
    inputs: Inputs,
    todo: Plan,
    first: Primary,
    unedited: Outputs,
    timings: Timings,
    known: Mapping[int, AttributionResult] = MappingProxyType({}),
) -> InspectResult:
    """What ``request`` is told, from what the first pass brought.

    Args:
        subject: the model, at work.
        request: the question.
        inputs: its tensors.
        todo: what it needs.
        first: what its first pass brought.
        unedited: what the model returns without edits, where that was asked.
        timings: how long things took so far.
        known: explanations that are there already, by their number in the request.
    """
    refuse_silent_layers(request, subject, first.seen)
    explanations, effects = attributions(subject, request, inputs, todo, first, timings, known)
    predicted = classes(subject, first.outputs)
    shown = {} if request.omit_predictions else first.outputs
    return InspectResult(
        predictions={name: to_numpy(output) for name, output in shown.items()},
        classes=() if request.omit_predictions else predicted,
        targets=None if first.targets is None else to_numpy(first.targets),
        target_values=None if first.target_values is None else to_numpy(first.target_values),
        captures=captures(first.wanted, first.seen.calls),
        input_gradients={name: to_numpy(gradient) for name, gradient in first.inputs.items()},
        parameter_gradients=_parameter_gradients(todo, first.parameters, isinstance(request.target, TopK)),
        attributions=explanations,
        unedited={name: to_numpy(output) for name, output in unedited.items()},
        unedited_classes=classes(subject, unedited),
        warnings=(
            *gradient_warnings(todo, first.inputs, first.parameters),
            *capture_warnings(first.wanted, first.seen, subject.tree),
            *edit_warnings(todo, first.seen, effects),
            *comparison_warnings(todo, unedited, first.outputs),
            *left_out(request.explain_if, predicted),
            *coupling(subject, inputs),
        ),
        provenance=replace(provenance(subject), seed=todo.seed or 0),
        timings=timings,
    )


def provenance(subject: Subject) -> Provenance:
    """What ``subject`` runs on and from, and the passes run since the counters were reset."""
    return Provenance(
        weights_sha256=subject.weights_sha256,
        torch_version=torch.__version__,
        captum_version=captum.__version__,
        device=str(subject.device),
        data_type=str(subject.dtype).removeprefix("torch."),
        forwards=subject.passes.forwards,
        backwards=subject.passes.backwards,
    )


def refuse_silent_layers(request: InspectRequest, subject: Subject, seen: Seen) -> None:
    """Refuse explanations at modules that were never called.

    Raises:
        InvalidArgument: ``METHOD_INAPPLICABLE``.
    """
    for index, attribution in enumerate(request.attributions):
        for name, field in modules_of(attribution).items():
            if not seen.calls[subject.tree.resolve(name)]:
                raise error(
                    Reason.METHOD_INAPPLICABLE,
                    f"the model never called its module {name!r}, so there is nothing to explain there",
                    f"attributions[{index}].{field_name(type(attribution))}.{field}",
                )


def _unedited(subject: Subject, inputs: Inputs, todo: Plan) -> Outputs:
    """What the model returns without edits, in the same grad mode and with the same random numbers."""
    with subject.dice(), torch.set_grad_enabled(todo.differentiates):
        return {name: output.detach().clone() for name, output in subject.run(inputs).items()}


def _parameter_gradients(todo: Plan, found: Values, several: bool) -> dict[str, Array]:
    """As wanted; of a top-k target each class' own."""
    made = {}
    for name, gradient in found.items():
        part, place = todo.parameters[name].of, f"parameter_gradients.{name}"
        wanted = (
            torch.stack([part(each, place).values for each in gradient]) if several else part(gradient, place).values
        )
        made[name] = to_numpy(wanted)
    return made
