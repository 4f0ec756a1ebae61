"""One request through one model: plan, hook, forward, backward, collect, attribute, check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import captum
import torch
from torch import Tensor

from cutaway.engine.absent import capture_warnings, comparison_warnings, edit_warnings, gradient_warnings
from cutaway.engine.arrays import to_numpy
from cutaway.engine.asking import question
from cutaway.engine.balance import Balance, at_input, balance
from cutaway.engine.checks import checks
from cutaway.engine.collect import captures, classes
from cutaway.engine.explain import explain
from cutaway.engine.hooks import observing
from cutaway.engine.methods import method_of
from cutaway.engine.plan import Plan, plan, rows
from cutaway.engine.primary import Primary, neuron_module, primary
from cutaway.engine.seen import Seen
from cutaway.engine.subject import Inputs, Outputs, Subject
from cutaway.engine.targets import Chosen, choose, source
from cutaway.engine.timed import timed
from cutaway.engine.witness import Pass, Question, Values, Witness, living
from cutaway.errors import CutawayError, Reason, at, error
from cutaway.requests import (
    AtLayer,
    Attribution,
    CheckMode,
    InspectRequest,
    Neuron,
    NeuronAttribution,
    TopK,
    field_name,
)
from cutaway.results import AttributionResult, Check, InspectResult, Provenance, Timings
from cutaway.tensors import Array


def inspect(subject: Subject, request: InspectRequest, inputs: Inputs, *, until: float | None = None) -> InspectResult:
    """Answer ``request`` about ``inputs``; afterwards the model is as it was.

    The caller sees to it that nothing else uses the model meanwhile: hooks are state of the model.

    Args:
        subject: the model.
        request: the question.
        inputs: its tensors, on the model's device.
        until: when the caller stops waiting, in Unix seconds; no pass begins later.

    Raises:
        CutawayError: the request cannot be answered; nothing was kept.
    """
    timings = Timings()
    subject.passes.reset()
    # Whatever grad mode the caller is in; tensors that were made under inference_mode cannot be differentiated.
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        subject.guard.untouched(),
        subject.until(until),
    ):
        given = {name: tensor.clone() if tensor.is_inference() else tensor for name, tensor in inputs.items()}
        todo = plan(subject, request, given)
        unedited = _unedited(subject, given, todo) if request.compare else {}
        first = primary(subject, request, given, todo, timings)
        _refuse_silent_layers(request, subject, first.seen)
        attributions, effects = _attributions(subject, request, given, todo, first, timings)
    shown = {} if request.omit_predictions else first.outputs
    return InspectResult(
        predictions={name: to_numpy(output) for name, output in shown.items()},
        classes=classes(subject, shown),
        targets=None if first.targets is None else to_numpy(first.targets),
        target_values=None if first.target_values is None else to_numpy(first.target_values),
        captures=captures(first.wanted, first.seen.calls),
        input_gradients={name: to_numpy(gradient) for name, gradient in first.inputs.items()},
        parameter_gradients=_parameter_gradients(todo, first.parameters, isinstance(request.target, TopK)),
        attributions=attributions,
        unedited={name: to_numpy(output) for name, output in unedited.items()},
        unedited_classes=classes(subject, unedited),
        warnings=(
            *gradient_warnings(todo, first.inputs, first.parameters),
            *capture_warnings(first.wanted, first.seen, subject.tree),
            *edit_warnings(todo, first.seen, effects),
            *comparison_warnings(todo, unedited, first.outputs),
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


def _refuse_silent_layers(request: InspectRequest, subject: Subject, seen: Seen) -> None:
    for index, attribution in enumerate(request.attributions):
        if isinstance(attribution, AtLayer) and not seen.calls[subject.tree.resolve(attribution.layer)]:
            raise error(
                Reason.METHOD_INAPPLICABLE,
                f"the model never called its module {attribution.layer!r}, so there is nothing to explain there",
                f"attributions[{index}].{field_name(type(attribution))}.layer",
            )


def _unedited(subject: Subject, inputs: Inputs, todo: Plan) -> Outputs:
    """What the model returns without edits, in the same grad mode and with the same random numbers."""
    with subject.dice(), torch.set_grad_enabled(todo.differentiates):
        return {name: output.detach().clone() for name, output in subject.run(inputs).items()}


def _parameter_gradients(todo: Plan, found: Values, several: bool) -> dict[str, Array]:
    """As wanted; of a top-k target each class' own."""
    made = {}
    for name, gradient in found.items():
        part = todo.parameters[name].of
        wanted = torch.stack([part(each).values for each in gradient]) if several else part(gradient).values
        made[name] = to_numpy(wanted)
    return made


def _attributions(
    subject: Subject, request: InspectRequest, inputs: Inputs, todo: Plan, first: Primary, timings: Timings
) -> tuple[tuple[AttributionResult, ...], dict[int, bool]]:
    """The explanations, of the edited model; and which edits had an effect in any pass so far."""
    if not request.attributions:
        return (), first.seen.effects
    with (
        subject.guard.swept(),
        observing(subject.tree, {}, todo.edits, batch=rows(inputs)) as edited,
        subject.within(edited.forward),
    ):
        answers = tuple(
            answer
            for index in range(len(request.attributions))
            for answer in _attribute(subject, request, index, inputs, todo, first.outputs, timings)
        )
    effects = [first.seen.effects, edited.effects]
    return answers, {number: any(each.get(number) for each in effects) for each in effects for number in each}


def _attribute(
    subject: Subject,
    request: InspectRequest,
    index: int,
    inputs: Inputs,
    todo: Plan,
    outputs: Outputs,
    timings: Timings,
) -> Iterator[AttributionResult]:
    """One explanation, by Captum, beside what the raw hooks say; of a top-k target one for each class."""
    attribution = request.attributions[index]
    with _about(index):
        for chosen in _explained(subject, request, attribution, outputs, inputs):
            asked = question(subject, attribution, inputs, chosen, todo.edits, todo.seed)
            if asked.layer and not any(tensor.is_floating_point() for tensor in inputs.values()):
                subject.guard.trainable()
            values, passes = _answer(asked, request.check.mode, timings)
            balanced = balance(asked, values, outputs) if asked.baselines else None
            verdicts: tuple[Check, ...] = ()
            if request.check.mode is not CheckMode.OFF:
                with timed(timings, "check_ms"):
                    verdicts = checks(asked, method_of(attribution), values, passes, balanced, request.check)
            yield _result(asked, values, outputs, balanced, verdicts)


@contextmanager
def _about(index: int) -> Iterator[None]:
    """Errors are about the attribution; but an edit that fails fails at its own place, in whatever pass."""
    try:
        with at(f"attributions[{index}]"):
            yield
    except CutawayError as failure:
        if failure.field.startswith(f"attributions[{index}].edits["):
            failure.field = failure.field.partition(".")[2]
        raise


def _explained(
    subject: Subject, request: InspectRequest, attribution: Attribution, outputs: Outputs, inputs: Inputs
) -> tuple[Chosen, ...]:
    if not method_of(attribution).differentiates:
        return (Chosen(next(iter(outputs)), lambda output: output),)
    target = _own_neuron(attribution) or attribution.target or request.target
    with at(_target_field(attribution)):
        if isinstance(target, Neuron):
            name = neuron_module(subject, target)
            read = _probe(subject, inputs, name)
        else:
            name = source(target, outputs)
            read = outputs[name]
        return choose(target, name, read, rows(inputs))


def _own_neuron(attribution: Attribution) -> Neuron | None:
    if isinstance(attribution, NeuronAttribution) and method_of(attribution).of_neuron:
        return attribution.neuron
    return None


def _target_field(attribution: Attribution) -> str:
    if method_of(attribution).of_neuron:
        return field_name(type(attribution))
    return "target" if attribution.target else ""


def _probe(subject: Subject, inputs: Inputs, module: str) -> Tensor:
    with torch.no_grad(), observing(subject.tree, {}, alive=module) as seen, seen.forward():
        subject.run(inputs)
        return living(seen, module)


def _answer(asked: Question, mode: CheckMode, timings: Timings) -> tuple[Values, Sequence[Pass]]:
    """Captum's values, and the passes that raw hooks saw: Captum's own, or a second computation's."""
    method = method_of(asked.request)
    if mode is CheckMode.SAME_PASS:
        # Where Captum puts values of its own in the layer's place, what listens there is not to stand in between.
        witness = Witness(asked, at_layer=method.own is None)
        with timed(timings, "attribution_ms"):
            try:
                return explain(asked, witness.forward), witness.passes
            finally:
                witness.release()
    with timed(timings, "attribution_ms"):
        values = explain(asked, asked.forward)
    if mode is CheckMode.OFF:
        return values, ()
    with timed(timings, "check_ms"):
        return values, method.passes(asked)


def _result(
    asked: Question, values: Values, outputs: Outputs, balanced: Balance | None, verdicts: tuple[Check, ...]
) -> AttributionResult:
    method = method_of(asked.request)
    indices = asked.chosen.indices if method.differentiates else None
    adds_up = balanced is not None and method.adds_up(asked.request)
    return AttributionResult(
        method=type(asked.request).__name__,
        layer=asked.layer,
        values={name: to_numpy(value) for name, value in values.items()},
        convergence_delta=to_numpy(balanced.delta) if balanced is not None and adds_up else None,
        value_at_input=to_numpy(at_input(asked, outputs)) if method.differentiates else None,
        value_at_baseline=None if balanced is None else to_numpy(balanced.at_baseline),
        targets=None if indices is None else to_numpy(indices),
        checks=verdicts,
    )
