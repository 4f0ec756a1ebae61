"""One request through one model: plan, hook, forward, backward, collect, attribute, check."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import captum
import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from cutaway.engine.arrays import to_numpy
from cutaway.engine.balance import Balance, balance, scalars
from cutaway.engine.checks import checks
from cutaway.engine.collect import captures, classes, warnings
from cutaway.engine.hooks import Seen, observing
from cutaway.engine.methods import TABLE, explain
from cutaway.engine.plan import Plan, plan, question
from cutaway.engine.subject import Inputs, Outputs, Subject, gradients
from cutaway.engine.targets import Chosen, choose
from cutaway.engine.witness import Pass, Question, Values, Witness, visits
from cutaway.errors import Reason, at, error
from cutaway.requests import Attribution, CheckMode, InspectRequest, LayerAttribution, Point, PredictedClass, field_name
from cutaway.results import (
    AttributionResult,
    Check,
    InspectResult,
    Provenance,
    Timings,
)


def inspect(subject: Subject, request: InspectRequest, inputs: Inputs) -> InspectResult:
    """Answer ``request`` about ``inputs``; afterwards the model is as it was.

    The caller sees to it that nothing else uses the model meanwhile: hooks are state of the model.

    Raises:
        CutawayError: the request cannot be answered; nothing was kept.
    """
    timings = Timings()
    subject.passes.reset()
    # Whatever grad mode the caller is in; tensors that were made under inference_mode cannot be differentiated.
    with torch.inference_mode(False), torch.enable_grad(), subject.guard.untouched():
        given = {name: tensor.clone() if tensor.is_inference() else tensor for name, tensor in inputs.items()}
        todo = plan(subject, request, given)
        first = _primary(subject, request, given, todo, timings)
        _refuse_silent_layers(request, subject, first.seen)
        attributions = tuple(
            _attribute(subject, request, index, given, first.outputs, timings)
            for index in range(len(request.attributions))
        )
    return InspectResult(
        predictions={name: to_numpy(output) for name, output in first.outputs.items()},
        classes=classes(subject, first.outputs),
        targets=None if first.chosen is None or first.chosen.indices is None else to_numpy(first.chosen.indices),
        target_values=None if first.chosen is None else to_numpy(first.chosen.scalars(first.outputs).double()),
        captures=captures(todo, first.seen),
        input_gradients={name: to_numpy(gradient) for name, gradient in first.gradients.items()},
        attributions=attributions,
        warnings=tuple(warnings(todo, first.seen, first.gradients)),
        provenance=provenance(subject),
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


@contextmanager
def timed(timings: Timings, stage: str) -> Iterator[None]:
    """Add the block's wall-clock time to one stage, in milliseconds."""
    start = time.perf_counter()
    try:
        yield
    finally:
        setattr(timings, stage, getattr(timings, stage) + (time.perf_counter() - start) * 1000)


class _Primary(NamedTuple):
    """The pass that predictions, captures and gradients come from; its outputs are copies, out of the graph."""

    seen: Seen
    outputs: Outputs
    chosen: Chosen | None
    gradients: Values


def _primary(subject: Subject, request: InspectRequest, inputs: Inputs, todo: Plan, timings: Timings) -> _Primary:
    leaves = {name: inputs[name].detach().clone().requires_grad_() for name in todo.gradients_of}
    # Layers to be explained are tapped at no point: only their calls are counted.
    layers = {subject.tree.resolve(a.layer) for a in request.attributions if isinstance(a, LayerAttribution)}
    taps = {**{name: set[Point]() for name in layers}, **todo.taps}
    with observing(subject.tree, taps) as seen:
        dice = torch.get_rng_state()
        with timed(timings, "forward_ms"), torch.set_grad_enabled(todo.differentiates), seen.forward():
            outputs = subject.run({**inputs, **leaves})
        chosen = _target(request, outputs, todo.differentiates, inputs)
        found: Values = {}
        if todo.differentiates and chosen is not None:
            with timed(timings, "backward_ms"):
                found = _backward(chosen.scalars(outputs), leaves, seen)
    own = {name: output.detach().clone() for name, output in outputs.items()}
    if seen.entangled:
        _refuse_entangled(subject, inputs, own, dice)
    return _Primary(seen, own, chosen, found)


def _target(request: InspectRequest, outputs: Outputs, differentiates: bool, inputs: Inputs) -> Chosen | None:
    # A target that was set is looked at even where nothing needs it: a wrong one must not pass in silence.
    needed = (
        differentiates
        or request.target != PredictedClass()
        or any(TABLE[type(a)].differentiates and a.target is None for a in request.attributions)
    )
    if not needed:
        return None
    with at("target"):
        return choose(request.target, outputs, _rows(inputs))


def _rows(inputs: Inputs) -> int:
    return next(iter(inputs.values())).shape[0]


def _backward(scalars: Tensor, leaves: Values, seen: Seen) -> Values:
    """The gradients at ``leaves``; those inside the model reach the hooks on the way."""
    wanted = [*map(get_gradient_edge, leaves.values()), *seen.gradient_roots]
    if not wanted:
        return {}
    if not scalars.requires_grad:
        raise error(
            Reason.NOT_DIFFERENTIABLE,
            "the target does not depend differentiably on anything asked for: the model detaches, rounds or indexes",
            "target",
        )
    found = gradients(scalars, wanted)
    return {name: gradient for name, gradient in zip(leaves, found) if gradient is not None}


def _refuse_entangled(subject: Subject, inputs: Inputs, outputs: Outputs, dice: Tensor) -> None:
    """Gradient points work on copies. Where the model changed a tensor in place and went on with its other half, the
    copies have changed what it computes: a run without them, with the same random numbers, tells."""
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(dice)
        plain = subject.run(inputs)
    if not all(torch.equal(plain[name].detach(), output) for name, output in outputs.items()):
        raise error(
            Reason.NOT_DIFFERENTIABLE,
            "the model changes a captured tensor in place and then uses it under another name, which no backward hook "
            "can follow: take the gradient at another module, or the operation out of place",
            "captures",
        )


def _refuse_silent_layers(request: InspectRequest, subject: Subject, seen: Seen) -> None:
    for index, attribution in enumerate(request.attributions):
        if isinstance(attribution, LayerAttribution) and not seen.calls[subject.tree.resolve(attribution.layer)]:
            raise error(
                Reason.METHOD_INAPPLICABLE,
                f"the model never called its module {attribution.layer!r}, so there is nothing to explain there",
                f"attributions[{index}].{field_name(type(attribution))}.layer",
            )


def _attribute(
    subject: Subject, request: InspectRequest, index: int, inputs: Inputs, outputs: Outputs, timings: Timings
) -> AttributionResult:
    """One explanation, by Captum, beside what the raw hooks say."""
    attribution = request.attributions[index]
    with at(f"attributions[{index}]"):
        chosen = _explained_target(request, attribution, outputs, inputs)
        asked = question(subject, attribution, inputs, chosen)
        if asked.layer and not any(tensor.is_floating_point() for tensor in inputs.values()):
            subject.guard.trainable()
        values, passes = _answer(asked, request.check.mode, timings)
        balanced = balance(asked, values, outputs) if asked.baselines else None
        verdicts: tuple[Check, ...] = ()
        if request.check.mode is not CheckMode.OFF:
            with timed(timings, "check_ms"):
                verdicts = checks(asked, TABLE[type(attribution)], values, passes, balanced, request.check)
    return _result(asked, values, outputs, balanced, verdicts)


def _explained_target(request: InspectRequest, attribution: Attribution, outputs: Outputs, inputs: Inputs) -> Chosen:
    if not TABLE[type(attribution)].differentiates:
        return Chosen(next(iter(outputs)), None)
    with at("target") if attribution.target else nullcontext():
        return choose(attribution.target or request.target, outputs, _rows(inputs))


def _answer(asked: Question, mode: CheckMode, timings: Timings) -> tuple[Values, Sequence[Pass]]:
    """Captum's values, and the passes that raw hooks saw: Captum's own, or a second computation's."""
    if mode is CheckMode.SAME_PASS:
        witness = Witness(asked)
        with timed(timings, "attribution_ms"):
            return explain(asked, witness.forward), witness.passes
    with timed(timings, "attribution_ms"):
        values = explain(asked, asked.forward)
    if mode is CheckMode.OFF:
        return values, ()
    method = TABLE[type(asked.request)]
    with timed(timings, "check_ms"):
        return values, visits(asked, method.points(asked), method.differentiates)


def _result(
    asked: Question, values: Values, outputs: Outputs, balanced: Balance | None, verdicts: tuple[Check, ...]
) -> AttributionResult:
    method = TABLE[type(asked.request)]
    indices = asked.chosen.indices if method.differentiates else None
    adds_up = balanced is not None and method.adds_up(asked.request)
    return AttributionResult(
        method=type(asked.request).__name__,
        layer=asked.layer,
        values={name: to_numpy(value) for name, value in values.items()},
        convergence_delta=to_numpy(balanced.delta) if balanced is not None and adds_up else None,
        value_at_input=to_numpy(scalars(asked, outputs)) if method.differentiates else None,
        value_at_baseline=None if balanced is None else to_numpy(balanced.at_baseline),
        targets=None if indices is None else to_numpy(indices),
        checks=verdicts,
    )
