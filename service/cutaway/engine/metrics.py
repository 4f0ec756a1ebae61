"""Numbers that judge an explanation, by Captum."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from captum import metrics as captum
from torch import Tensor

from cutaway.engine.arrays import to_numpy
from cutaway.engine.copies import MAX_SAMPLES, apart, one_at_a_time, together
from cutaway.engine.draws import drawing
from cutaway.engine.explain import explain
from cutaway.engine.subject import Inputs, dtype_text
from cutaway.engine.witness import Question, Values
from cutaway.errors import Reason, at, error
from cutaway.requests import Attribution, Infidelity, LayerAttribution, Metric, SensitivityMax, field_name
from cutaway.results import MetricResult

ROWS_A_PASS = 256
"""Captum perturbs all rows at once. So many are run in one pass, as it does; more, a batch at a time."""


def metrics(question: Question, values: Values) -> tuple[MetricResult, ...]:
    """What the request's metrics say of ``values``, the answer to ``question``; each draws from the seed anew.

    Raises:
        InvalidArgument: with the field at fault.
    """
    found = []
    for index, metric in enumerate(question.request.metrics):
        with at(f"metrics[{index}]"):
            judged: Tensor = METRICS[type(metric)](metric, question, values)
            found.append(MetricResult(field_name(type(metric)), to_numpy(judged.detach().cpu().double())))
    return tuple(found)


def _infidelity(metric: Infidelity, question: Question, values: Values) -> Tensor:
    """[batch], the mean over draws of ``(sum of noise * attribution - (f(x) - f(x - noise)))**2``; the noise is
    ``stdev * torch.randn_like(x)``, input by input."""

    def perturbed(given: Tensor | tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        inputs = given if isinstance(given, tuple) else (given,)
        noise = tuple(metric.stdev * torch.randn_like(each) for each in inputs)
        return noise, tuple(each - some for each, some in zip(inputs, noise))

    def called(*tensors: Tensor) -> Tensor:
        output = question.forward(*tensors)
        return output if question.chosen.indices is not None else question.chosen.of(output)

    def forward(*tensors: Tensor) -> Tensor:
        rows = len(tensors[0])
        if rows <= ROWS_A_PASS and not question.keeps_rows:
            return called(*tensors)
        return one_at_a_time(called, rows // question.rows)(*tensors)

    with drawing(question.seed, question.subject.device):
        found: Tensor = captum.infidelity(
            forward,
            perturbed,
            tuple(each.contiguous() for each in question.arguments),
            tuple(values[name].contiguous() for name in question.explained),
            additional_forward_args=question.further or None,
            target=question.chosen.indices,
            n_perturb_samples=metric.n_samples,
        )
    return found


def _sensitivity_max(metric: SensitivityMax, question: Question, values: Values) -> Tensor:
    """[batch], the largest over draws of ``|attribution at the perturbed input - attribution| / |attribution|``;
    perturbations are Captum's own, from a ball of the radius."""

    def explained(given: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        inputs = given if isinstance(given, tuple) else (given,)
        batches = apart(inputs, len(inputs[0]) // question.rows)
        found = [_explained_at(question, batch) for batch in batches]
        return tuple(together(each).contiguous() for each in zip(*found))

    with drawing(question.seed, question.subject.device):
        found: Tensor = captum.sensitivity_max(
            explained,
            tuple(each.detach() for each in question.arguments),
            perturb_radius=metric.radius,
            n_perturb_samples=metric.n_samples,
        )
    return found


def _explained_at(question: Question, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The same explanation of other inputs; of a method that draws, from the same numbers."""
    # What Captum adds is float32.
    given = {name: tensor.to(question.inputs[name].dtype) for name, tensor in zip(question.explained, inputs)}
    elsewhere = replace(question, inputs={**question.inputs, **given})
    found = explain(elsewhere, elsewhere.forward)
    for name, value in found.items():
        if value.shape[:1] != (question.rows,):
            raise error(
                Reason.METHOD_INAPPLICABLE,
                f"the explanation {name!r} has shape {list(value.shape)}, whose axis 0 is not the batch of "
                f"{question.rows}: there is no number an example",
            )
    return tuple(found.values())


METRICS: dict[type[Metric], Callable[[Any, Question, Values], Tensor]] = {
    Infidelity: _infidelity,
    SensitivityMax: _sensitivity_max,
}
"""A new metric is a new row."""


def refuse_metric(metric: Metric, request: Attribution, inputs: Inputs, explained: Sequence[str]) -> None:
    """Refuse a metric that cannot judge ``request``, before anything runs; ``explained``: the inputs that it perturbs.

    Raises:
        InvalidArgument: with the field at fault, below the metric's own.
    """
    if isinstance(metric, Infidelity) and isinstance(request, LayerAttribution):
        raise error(
            Reason.METHOD_INAPPLICABLE,
            f"infidelity perturbs inputs, and {type(request).__name__} explains a layer: ask it of a method that "
            "explains inputs, or ask sensitivity_max",
        )
    with at(field_name(type(metric))):
        _refuse_numbers(metric)
    for name in explained:
        if not inputs[name].is_floating_point():
            raise error(
                Reason.METHOD_INAPPLICABLE,
                f"the metric perturbs {name!r}, which is {dtype_text(inputs[name])}: name inputs of floats to be "
                "explained",
            )


def _refuse_numbers(metric: Any) -> None:
    if not 1 <= metric.n_samples <= MAX_SAMPLES:
        raise error(Reason.INVALID_VALUE, f"{metric.n_samples} samples; from 1 to {MAX_SAMPLES}", "n_samples")
    spread = "stdev" if isinstance(metric, Infidelity) else "radius"
    if not 0 < getattr(metric, spread) < math.inf:
        raise error(Reason.INVALID_VALUE, f"{getattr(metric, spread)}; a finite number above 0", spread)
