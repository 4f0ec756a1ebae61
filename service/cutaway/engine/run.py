"""One request through one model: plan, hook, forward, backward, collect, attribute, check."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import captum
import torch
from torch import Tensor

from cutaway.engine.arrays import to_numpy
from cutaway.engine.checks import checks
from cutaway.engine.hooks import Call, Seen, observing
from cutaway.engine.methods import TABLE, explain
from cutaway.engine.plan import Plan, plan, question
from cutaway.engine.subject import Inputs, Outputs, Subject
from cutaway.engine.targets import Chosen, choose
from cutaway.engine.witness import Pass, Question, Values, witnessing
from cutaway.errors import Reason, at, error
from cutaway.requests import Attribution, CheckMode, InspectRequest, LayerAttribution, Point, PredictedClass, field_name
from cutaway.results import (
    AttributionResult,
    CapturedCall,
    Check,
    ClassPrediction,
    InspectResult,
    ModuleCapture,
    Provenance,
    Timings,
    Warning,
    WarningCode,
)


def inspect(subject: Subject, request: InspectRequest, inputs: Inputs) -> InspectResult:
    """Answer ``request`` about ``inputs``; afterwards the model is as it was.

    The caller sees to it that nothing else uses the model meanwhile: hooks are state of the model.

    Raises:
        CutawayError: the request cannot be answered; nothing was kept.
    """
    timings = Timings()
    subject.passes.reset()
    with subject.guard.untouched():
        todo = plan(subject, request, inputs)
        layers = _explained_layers(subject, request)
        seen, outputs, chosen, gradients = _primary(subject, request, inputs, todo, layers, timings)
        _refuse_silent_layers(request, subject, seen)
        attributions = tuple(
            _attribute(subject, request, index, inputs, outputs, timings) for index in range(len(request.attributions))
        )
    warnings = _warnings(todo, seen, gradients)
    return InspectResult(
        predictions={name: to_numpy(output) for name, output in outputs.items()},
        classes=_classes(subject, outputs),
        targets=None if chosen is None or chosen.indices is None else to_numpy(chosen.indices),
        target_values=None if chosen is None else to_numpy(chosen.scalars(outputs).double()),
        captures={name: _capture(seen.calls[name], todo.taps[name]) for name in todo.taps if seen.calls[name]},
        input_gradients={name: to_numpy(gradient) for name, gradient in gradients.items()},
        attributions=attributions,
        warnings=tuple(warnings),
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


def _explained_layers(subject: Subject, request: InspectRequest) -> set[str]:
    return {subject.tree.resolve(a.layer) for a in request.attributions if isinstance(a, LayerAttribution)}


def _primary(
    subject: Subject, request: InspectRequest, inputs: Inputs, todo: Plan, layers: set[str], timings: Timings
) -> tuple[Seen, Outputs, Chosen | None, Values]:
    """The forward pass that predictions and captures come from, and the backward pass of the target."""
    leaves = {name: inputs[name].detach().clone().requires_grad_() for name in todo.gradients_of}
    # Layers to be explained are tapped at no point: only their calls are counted.
    taps = {**{name: set[Point]() for name in layers}, **todo.taps}
    with observing(subject.tree, taps) as seen:
        with timed(timings, "forward_ms"), torch.set_grad_enabled(todo.differentiates):
            outputs = subject.run({**inputs, **leaves})
        chosen = _target(request, outputs, todo.differentiates)
        gradients: Values = {}
        if todo.differentiates and chosen is not None:
            with timed(timings, "backward_ms"):
                gradients = _backward(chosen.scalars(outputs), leaves, seen)
    return seen, {name: output.detach() for name, output in outputs.items()}, chosen, gradients


def _target(request: InspectRequest, outputs: Outputs, differentiates: bool) -> Chosen | None:
    # A target that was set is looked at even where nothing needs it: a wrong one must not pass in silence.
    set_by_caller = request.target != PredictedClass()
    needed = (
        differentiates
        or set_by_caller
        or any(TABLE[type(a)].differentiates and a.target is None for a in request.attributions)
    )
    if not needed:
        return None
    with at("target"):
        return choose(request.target, outputs)


def _backward(scalars: Tensor, leaves: Values, seen: Seen) -> Values:
    """The gradients of each row's scalar, through ``torch.autograd.grad``: no parameter's ``grad`` is written."""
    wanted = [*leaves.values(), *seen.gradient_roots]
    if not wanted:
        return {}
    if not scalars.requires_grad:
        raise error(
            Reason.NOT_DIFFERENTIABLE,
            "the target does not depend differentiably on anything asked for: the model detaches, rounds or indexes",
            "target",
        )
    found: tuple[Tensor | None, ...] = torch.autograd.grad(scalars.sum(), wanted, allow_unused=True)
    return {name: gradient for name, gradient in zip(leaves, found) if gradient is not None}


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
        chosen = _explained_target(request, attribution, outputs)
        asked = question(subject, attribution, inputs, chosen)
        if asked.layer and not any(tensor.is_floating_point() for tensor in inputs.values()):
            subject.guard.trainable()
        with torch.enable_grad():
            values, passes = _answer(asked, request.check.mode, timings)
        verdicts: tuple[Check, ...] = ()
        if request.check.mode is not CheckMode.OFF:
            with timed(timings, "check_ms"):
                verdicts = checks(asked, TABLE[type(attribution)], values, passes, request.check)
    return _result(asked, values, outputs, verdicts)


def _explained_target(request: InspectRequest, attribution: Attribution, outputs: Outputs) -> Chosen:
    if not TABLE[type(attribution)].differentiates:
        return Chosen(next(iter(outputs)), None)
    with at("target") if attribution.target else _no_field():
        return choose(attribution.target or request.target, outputs)


@contextmanager
def _no_field() -> Iterator[None]:
    yield


def _answer(asked: Question, mode: CheckMode, timings: Timings) -> tuple[Values, Sequence[Pass]]:
    """Captum's values, and the passes that raw hooks saw: Captum's own, or a second computation's."""
    if mode is CheckMode.SAME_PASS:
        with timed(timings, "attribution_ms"), witnessing(asked) as witness:
            return explain(asked, witness.forward), witness.passes
    with timed(timings, "attribution_ms"):
        values = explain(asked, asked.forward)
    if mode is CheckMode.OFF:
        return values, ()
    with timed(timings, "check_ms"), witnessing(asked) as witness:
        method = TABLE[type(asked.request)]
        for point in method.points(asked):
            witness.visit(point, method.differentiates)
    return values, witness.passes


def _result(asked: Question, values: Values, outputs: Outputs, verdicts: tuple[Check, ...]) -> AttributionResult:
    method = TABLE[type(asked.request)]
    at_input = asked.chosen.scalars(outputs).double() if method.differentiates else None
    at_baseline = delta = None
    if asked.baselines and at_input is not None:
        with torch.no_grad():
            at_baseline = asked.chosen.scalars(asked.subject.run({**asked.inputs, **asked.baselines})).double()
        if method.adds_up(asked.request):
            total = sum(value.double().reshape(asked.rows, -1).sum(dim=1) for value in values.values())
            delta = total - (at_input - at_baseline)
    indices = asked.chosen.indices if method.differentiates else None
    return AttributionResult(
        method=type(asked.request).__name__,
        layer=asked.layer,
        values={name: to_numpy(value) for name, value in values.items()},
        convergence_delta=None if delta is None else to_numpy(delta),
        value_at_input=None if at_input is None else to_numpy(at_input),
        value_at_baseline=None if at_baseline is None else to_numpy(at_baseline),
        targets=None if indices is None else to_numpy(indices),
        checks=verdicts,
    )


def _classes(subject: Subject, outputs: Outputs) -> tuple[ClassPrediction, ...]:
    logits = next(iter(outputs.values()))
    if not subject.labels or logits.ndim != 2:
        return ()
    probabilities, indices = logits.double().softmax(dim=1).max(dim=1)
    return tuple(
        ClassPrediction(index, subject.labels[index] if index < len(subject.labels) else "", probability)
        for index, probability in zip(indices.tolist(), probabilities.tolist())
    )


def _capture(calls: Sequence[Call], points: set[Point]) -> ModuleCapture:
    return ModuleCapture(
        tuple(
            CapturedCall(
                {
                    point: {path: to_numpy(tensor) for path, tensor in call[point].items()}
                    for point in Point
                    if point in points and point in call
                }
            )
            for call in calls
        )
    )


def _warnings(todo: Plan, seen: Seen, gradients: Values) -> Iterator[Warning]:
    """What was asked for and cannot be returned, said aloud."""
    for name in todo.gradients_of:
        if name not in gradients:
            yield Warning(WarningCode.NO_GRADIENT, name, f"the target does not depend on the input {name!r}")
    for name, points in todo.taps.items():
        if not seen.calls[name]:
            yield Warning(
                WarningCode.MODULE_NOT_CALLED,
                name,
                f"the model never called {name!r}: there is nothing to capture",
            )
            continue
        for point in sorted(points, key=list(Point).index):
            silent = [index for index, call in enumerate(seen.calls[name]) if not call.get(point)]
            if silent:
                yield _silence(name, point, silent)


def _silence(name: str, point: Point, silent: list[int]) -> Warning:
    which = f"call {', '.join(map(str, silent))} of {name!r}"
    if point.is_gradient:
        return Warning(
            WarningCode.NO_GRADIENT,
            name,
            f"the target's gradient does not reach the {point.value} of {which}",
        )
    return Warning(WarningCode.NOT_A_TENSOR, name, f"there is no tensor at the {point.value} of {which}")
