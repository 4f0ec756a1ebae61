"""What explanations would be: their shapes, told from one forward pass without Captum."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from cutaway.engine import hollow
from cutaway.engine.arrays import to_numpy
from cutaway.engine.attributions import about, questions
from cutaway.engine.collect import classes
from cutaway.engine.completeness import compared
from cutaway.engine.conditions import qualifying
from cutaway.engine.evidence import layer_value_name
from cutaway.engine.methods import method_of
from cutaway.engine.plan import Plan
from cutaway.engine.primary import modules_of
from cutaway.engine.seen import Seen
from cutaway.engine.subject import Inputs, Outputs, Subject
from cutaway.engine.tokens import input_of, token_ids
from cutaway.engine.wishes import Wish
from cutaway.engine.witness import Question, living
from cutaway.requests import (
    CheckMode,
    InspectRequest,
    LayerAttribution,
    LayerGradCam,
    Neuron,
    Occlusion,
    PathAttribution,
    Perturbation,
    Point,
    ShapleyValues,
    ShapleyValueSampling,
    Surrogate,
    field_name,
)
from cutaway.results import AttributionResult, Check, MetricResult, TokenAttribution, Verdict
from cutaway.tensors import Array


def looked_at(subject: Subject, request: InspectRequest) -> dict[str, dict[Point, Wish]]:
    """What explanations need to be known of modules: the shapes that come out, and the token ids that go in."""
    names = [name for each in request.attributions for name in modules_of(each)]
    names += [each.target.module for each in request.attributions if isinstance(each.target, Neuron)]
    if isinstance(request.target, Neuron):
        names.append(request.target.module)
    found: dict[str, dict[Point, Wish]] = {}
    for name in names:
        own = subject.tree.resolve(name)
        embeds = isinstance(subject.tree.modules[own], nn.Embedding)
        found[own] = {Point.OUTPUT: hollow.OfValue(), **({Point.INPUT: Wish()} if embeds else {})}
    return found


def explanations(
    subject: Subject, request: InspectRequest, inputs: Inputs, todo: Plan, outputs: Outputs, seen: Seen
) -> Iterator[AttributionResult]:
    """The explanations that ``request`` would get, all of them zeros; ``seen``: what was `looked_at`.

    Raises:
        CutawayError: what is wrong with one of them, as far as no pass is needed to find it out.
    """
    worth = qualifying(request.explain_if, classes(subject, outputs)) if request.attributions else None

    def probe(module: str) -> Tensor:
        shown = Seen()
        parts = [part for call in seen.calls[module] for part in call.parts(Point.OUTPUT).values()]
        shown.neuron = hollow.filled(parts[0]).values if parts else None
        return living(shown, module)

    for index, attribution in enumerate(request.attributions):
        with about(index):
            for asked in questions(subject, request, attribution, inputs, todo, outputs, probe):
                method_of(attribution).options(asked)  # which may refuse the question
                if worth is not None and not worth:
                    yield AttributionResult(type(attribution).__name__, asked.module, {})
                else:
                    values = _values(asked, request.reply_data_type, outputs, seen)
                    yield _explanation(asked, request, values, seen)


def _explanation(asked: Question, request: InspectRequest, values: dict[str, Array], seen: Seen) -> AttributionResult:
    method, one_a_row = method_of(asked.request), np.zeros(asked.rows)
    indices = asked.chosen.indices if method.differentiates else None
    adds_up = bool(asked.baselines) and method.adds_up(asked.request)
    return AttributionResult(
        method=type(asked.request).__name__,
        layer=asked.module,
        values=values,
        convergence_delta=one_a_row if adds_up or method.conserves else None,
        value_at_input=one_a_row if method.differentiates else None,
        value_at_baseline=one_a_row if asked.baselines and not method.conserves else None,
        targets=None if indices is None else to_numpy(indices),
        checks=tuple(_checks(asked, request.check.mode, adds_up or method.conserves)),
        n_steps=asked.request.n_steps if isinstance(asked.request, PathAttribution) else 0,
        tokens=_tokens(asked, values, seen),
        metrics=tuple(MetricResult(field_name(type(metric)), one_a_row) for metric in asked.request.metrics),
    )


def _values(asked: Question, data_type: str, outputs: Outputs, seen: Seen) -> dict[str, Array]:
    if not isinstance(asked.request, LayerAttribution):
        given = {name: asked.inputs[name] for name in asked.explained}
        return {
            name: hollow.array(tensor.shape, _like(asked, tensor, outputs, seen), data_type)
            for name, tensor in given.items()
        }
    shown = seen.calls[asked.layer][-1].at(Point.OUTPUT)  # of several calls Captum keeps the last
    paths = {path: "" if len(shown) == 1 and not path else f"[{index}]" for index, path in enumerate(shown)}
    return {
        layer_value_name(asked.layer, paths[path]): hollow.array(_at_layer(asked, tensor), tensor, data_type)
        for path, tensor in shown.items()
    }


def _like(asked: Question, explained: Tensor, outputs: Outputs, seen: Seen) -> Tensor:
    """A tensor of the data type in which Captum explains an input."""
    if isinstance(asked.request, (Occlusion, ShapleyValues, ShapleyValueSampling, Surrogate)):
        return torch.empty(0, dtype=torch.float32)  # whatever the model computes in
    if not isinstance(asked.request, Perturbation):
        return explained
    if not asked.chosen.is_neuron:
        return outputs[asked.chosen.source]
    return next(iter(seen.calls[asked.chosen.source][0].at(Point.OUTPUT).values()))


def _at_layer(asked: Question, output: Tensor) -> tuple[int, ...]:
    if isinstance(asked.request, LayerGradCam):  # sums up the channels
        return (*output.shape[:1], 1, *output.shape[2:])
    return tuple(output.shape)


def _tokens(asked: Question, values: dict[str, Array], seen: Seen) -> TokenAttribution | None:
    value = values.get(asked.layer)
    if value is None or not isinstance(asked.subject.tree.modules[asked.layer], nn.Embedding):
        return None
    ids = token_ids(asked, seen.calls[asked.layer][0], value.shape)
    return None if ids is None else TokenAttribution(input_of(asked, ids), to_numpy(ids), value[..., 0])


def _checks(asked: Question, mode: CheckMode, adds_up: bool) -> Iterator[Check]:
    """As they are where all is well."""
    if mode is not CheckMode.OFF:
        method = method_of(asked.request)
        what = [
            f"Captum's {type(asked.request).__name__} with {method.identity}",
            *([compared(method)] if adds_up else []),
        ]
        for each in what:
            yield Check(each, mode, 1.0, 1.0, 1.0, 1.0, Verdict.AGREES)
