"""The explanations of one request, each by Captum, each beside what raw hooks say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import Tensor

from cutaway.engine.arrays import to_numpy
from cutaway.engine.asking import question
from cutaway.engine.balance import Balance, at_input, balance
from cutaway.engine.checks import checks
from cutaway.engine.collect import classes
from cutaway.engine.conditions import explained_where, of_rows, qualifying
from cutaway.engine.explain import explain
from cutaway.engine.hooks import observing
from cutaway.engine.methods import method_of
from cutaway.engine.methods.paths import finer_steps
from cutaway.engine.metrics import metrics
from cutaway.engine.plan import Plan, rows
from cutaway.engine.primary import Primary, neuron_module
from cutaway.engine.subject import Inputs, Outputs, Subject
from cutaway.engine.targets import Chosen, choose, itself, source
from cutaway.engine.timed import timed
from cutaway.engine.tokens import by_token
from cutaway.engine.witness import Pass, Question, Values, Witness, living
from cutaway.errors import CutawayError, at
from cutaway.requests import (
    Attribution,
    CheckMode,
    CheckRequest,
    InspectRequest,
    Neuron,
    NeuronAttribution,
    PathAttribution,
    field_name,
)
from cutaway.results import AttributionResult, Check, Timings

Probe: TypeAlias = Callable[[str], Tensor]
"""By a module's name, the first tensor that its first call returns."""


def attributions(
    subject: Subject,
    request: InspectRequest,
    inputs: Inputs,
    todo: Plan,
    first: Primary,
    timings: Timings,
    known: Mapping[int, AttributionResult] = MappingProxyType({}),
) -> tuple[tuple[AttributionResult, ...], dict[int, bool]]:
    """The explanations, of the edited model; and which edits had an effect in any pass so far. Those in ``known``, by
    their number in the request, are there already."""
    if not request.attributions:
        return (), first.seen.effects
    worth = qualifying(request.explain_if, classes(subject, first.outputs))
    with (
        subject.guard.swept(),
        observing(subject.tree, {}, todo.edits, batch=rows(inputs)) as edited,
        subject.within(edited.forward),
    ):
        answers = tuple(
            answer
            for index in range(len(request.attributions))
            for answer in (
                [known[index]]
                if index in known
                else _attribute(subject, request, index, inputs, todo, first.outputs, worth, timings)
            )
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
    worth: Sequence[int] | None,
    timings: Timings,
) -> Iterator[AttributionResult]:
    """One explanation, by Captum, beside what the raw hooks say; of a top-k target one for each class."""
    attribution = request.attributions[index]

    def explanation(each: Question) -> AttributionResult:
        return _one(each, request.check, outputs, worth, timings)

    with about(index):
        for asked in questions(subject, request, attribution, inputs, todo, outputs):
            yield explained_where(worth, asked, explanation)


def questions(
    subject: Subject,
    request: InspectRequest,
    attribution: Attribution,
    inputs: Inputs,
    todo: Plan,
    outputs: Outputs,
    probe: Probe | None = None,
) -> Iterator[Question]:
    """``attribution`` made definite for ``inputs``, of which the model returned ``outputs``: one question, or of a
    top-k target one for each class. ``probe`` knows what modules return; by default a pass tells."""
    for chosen in _explained(subject, request, attribution, outputs, inputs, probe or partial(_probe, subject, inputs)):
        asked = question(subject, attribution, inputs, chosen, todo.edits, todo.seed)
        if asked.layer and not any(tensor.is_floating_point() for tensor in inputs.values()):
            subject.guard.trainable()
        yield asked


def _one(
    asked: Question, check: CheckRequest, outputs: Outputs, worth: Sequence[int] | None, timings: Timings
) -> AttributionResult:
    """The explanation of one target, and what the raw hooks say about it."""
    outputs = of_rows(outputs, asked, worth)
    return judged(*_answered(asked, check.mode, outputs, timings), check, outputs, timings)


def judged(
    asked: Question,
    values: Values,
    passes: Sequence[Pass],
    balanced: Balance | None,
    check: CheckRequest,
    outputs: Outputs,
    timings: Timings,
) -> AttributionResult:
    """Captum's ``values`` beside what raw hooks saw in ``passes``."""
    method = method_of(asked.request)
    verdicts: tuple[Check, ...] = ()
    if check.mode is not CheckMode.OFF:
        with timed(timings, "check_ms"):
            verdicts = checks(asked, method, values, passes, balanced, check)
    with timed(timings, "attribution_ms"):
        faithful = metrics(asked, values)
    return replace(_result(asked, values, outputs, balanced, verdicts), metrics=faithful)


def _answered(
    asked: Question, mode: CheckMode, outputs: Outputs, timings: Timings
) -> tuple[Question, Values, Sequence[Pass], Balance | None]:
    """The answer, with as many steps as its bound on the convergence delta needs; and the question with these."""
    while True:
        values, passes, balanced = answered(asked, mode, outputs, timings)
        finer = None if balanced is None else finer_steps(asked.request, balanced)
        if finer is None:
            return asked, values, passes, balanced
        asked = replace(asked, request=finer)


@contextmanager
def about(index: int) -> Iterator[None]:
    """Errors are about the attribution; but an edit that fails fails at its own place, in whatever pass."""
    try:
        with at(f"attributions[{index}]"):
            yield
    except CutawayError as failure:
        if failure.field.startswith(f"attributions[{index}].edits["):
            failure.field = failure.field.partition(".")[2]
        raise


def _explained(
    subject: Subject,
    request: InspectRequest,
    attribution: Attribution,
    outputs: Outputs,
    inputs: Inputs,
    probe: Probe,
) -> tuple[Chosen, ...]:
    if not method_of(attribution).differentiates:
        return (Chosen(next(iter(outputs)), itself),)
    if isinstance(attribution, NeuronAttribution):
        neuron = _neuron(subject, attribution, inputs, probe)
        if method_of(attribution).of_neuron:
            return neuron
    target = attribution.target or request.target
    with at("target" if attribution.target else ""):
        if isinstance(target, Neuron):
            name = neuron_module(subject, target)
            read = probe(name)
        else:
            name = source(target, outputs)
            read = outputs[name]
        return choose(target, name, read, rows(inputs))


def _neuron(subject: Subject, attribution: NeuronAttribution, inputs: Inputs, probe: Probe) -> tuple[Chosen, ...]:
    with at(field_name(type(attribution))):
        name = neuron_module(subject, attribution.neuron)
        return choose(attribution.neuron, name, probe(name), rows(inputs))


def _probe(subject: Subject, inputs: Inputs, module: str) -> Tensor:
    with torch.no_grad(), observing(subject.tree, {}, alive=module) as seen, seen.forward():
        subject.run(inputs)
        return living(seen, module)


def answered(
    asked: Question, mode: CheckMode, outputs: Outputs, timings: Timings
) -> tuple[Values, Sequence[Pass], Balance | None]:
    """Captum's values, the passes that raw hooks saw, and what the values are to add up to."""
    values, passes = _answer(asked, mode, timings)
    adds_up = asked.baselines or method_of(asked.request).conserves
    return values, passes, balance(asked, values, outputs) if adds_up else None


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
    adds_up = balanced is not None and (method.adds_up(asked.request) or method.conserves)
    return AttributionResult(
        method=type(asked.request).__name__,
        layer=asked.module,
        values={name: to_numpy(value) for name, value in values.items()},
        convergence_delta=to_numpy(balanced.delta) if balanced is not None and adds_up else None,
        value_at_input=to_numpy(at_input(asked, outputs)) if method.differentiates else None,
        value_at_baseline=None if balanced is None or method.conserves else to_numpy(balanced.at_baseline),
        targets=None if indices is None else to_numpy(indices),
        checks=verdicts,
        n_steps=asked.request.n_steps if isinstance(asked.request, PathAttribution) else 0,
        tokens=by_token(asked, values),
    )
