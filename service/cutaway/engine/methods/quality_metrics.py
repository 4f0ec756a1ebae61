"""Captum's metrics of the quality of an attribution: infidelity and maximum sensitivity."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from captum import metrics as captum
from torch import Tensor

from cutaway.contract.errors import Reason, at, error
from cutaway.contract.requests import Attribution, Infidelity, LayerAttribution, Metric, SensitivityMax, field_name
from cutaway.contract.results import MetricResult
from cutaway.engine.methods.captum_call import explain
from cutaway.engine.methods.spec import inapplicable, refuse_integers, refuse_samples
from cutaway.engine.model.inspected_model import Inputs
from cutaway.engine.passes.pass_recorder import AttributionProblem, Values
from cutaway.engine.passes.repeated_batch import interleave_copies, run_copies_separately, split_copies
from cutaway.engine.runtime.numerics import to_numpy
from cutaway.engine.runtime.rng import seeded

MAX_ROWS_PER_PASS = 256
"""Captum perturbs all rows at once. Up to so many run in one pass, as Captum does it; more, one batch at a time."""


def metrics(problem: AttributionProblem, values: Values) -> tuple[MetricResult, ...]:
    """Computes the request's metrics for ``values``, the attribution of ``problem``; each draws from the seed anew.

    Raises:
        InvalidArgument: with the field at fault.
    """
    results = []
    for index, metric in enumerate(problem.request.metrics):
        with at(f"metrics[{index}]"), seeded(problem.seed, problem.model.device):
            result: Tensor = METRICS[type(metric)](metric, problem, values)
        results.append(MetricResult(field_name(type(metric)), to_numpy(result.detach().cpu().double())))
    return tuple(results)


def _tuple(inputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return inputs if isinstance(inputs, tuple) else (inputs,)


def _infidelity(metric: Infidelity, problem: AttributionProblem, values: Values) -> Any:
    """Returns the mean over samples of ``(sum of noise * attribution - (f(x) - f(x - noise)))**2``, [batch].

    The noise is ``stdev * torch.randn_like(x)``, input by input. Yeh et al. 2019, arXiv:1901.09392.
    """

    def perturbed(inputs: Tensor | tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        noise = tuple(metric.stdev * torch.randn_like(tensor) for tensor in _tuple(inputs))
        return noise, tuple(tensor - change for tensor, change in zip(_tuple(inputs), noise))

    def target(*tensors: Tensor) -> Tensor:
        output = problem.forward(*tensors)
        return output if problem.target.positions is not None else problem.target.scalars(output)

    def forward(*tensors: Tensor) -> Tensor:
        rows = len(tensors[0])
        if rows <= MAX_ROWS_PER_PASS and not problem.is_row_specific:
            return target(*tensors)
        return run_copies_separately(target, rows // problem.rows)(*tensors)

    return captum.infidelity(
        forward,
        perturbed,
        tuple(tensor.contiguous() for tensor in problem.arguments),
        tuple(values[name].contiguous() for name in problem.explained),
        additional_forward_args=problem.additional_inputs or None,
        target=problem.target.in_captums_words,
        n_perturb_samples=metric.n_samples,
    )


def _sensitivity_max(metric: SensitivityMax, problem: AttributionProblem, values: Values) -> Any:
    """Returns the maximum over samples of ``|attribution(perturbed x) - attribution(x)| / |attribution(x)|``, [batch].

    Captum perturbs the input within a ball of the given radius. Yeh et al. 2019, arXiv:1901.09392.
    """

    def attribute(inputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        batches = split_copies(_tuple(inputs), len(_tuple(inputs)[0]) // problem.rows)
        attributions = [_attribution_at(problem, batch) for batch in batches]
        return tuple(interleave_copies(tensors).contiguous() for tensors in zip(*attributions))

    return captum.sensitivity_max(
        attribute,
        tuple(tensor.detach() for tensor in problem.arguments),
        perturb_radius=metric.radius,
        n_perturb_samples=metric.n_samples,
    )


def _attribution_at(problem: AttributionProblem, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Returns the attribution of other inputs, with the same random numbers if the method draws any."""
    # Captum's perturbations are float32.
    changed = {name: tensor.to(problem.inputs[name].dtype) for name, tensor in zip(problem.explained, inputs)}
    elsewhere = replace(problem, inputs={**problem.inputs, **changed})
    attribution = explain(elsewhere, elsewhere.forward)
    for name, value in attribution.items():
        if value.shape[:1] != (problem.rows,):
            raise inapplicable(
                f"the attribution {name!r} has shape {list(value.shape)}, whose axis 0 is not the batch of "
                f"{problem.rows}: the metric is one number for each example"
            )
    return tuple(attribution.values())


METRICS: dict[type[Metric], Callable[[Any, AttributionProblem, Values], Any]] = {
    Infidelity: _infidelity,
    SensitivityMax: _sensitivity_max,
}
"""The metrics: a new one is a new row."""


def refuse_metric(metric: Metric, request: Attribution, inputs: Inputs, explained: Sequence[str]) -> None:
    """Raises for a metric that cannot be computed for ``request``, before anything runs.

    ``explained``: the names of the inputs that the metric perturbs.

    Raises:
        InvalidArgument: fields are relative to the metric's message.
    """
    if isinstance(metric, Infidelity) and isinstance(request, LayerAttribution):
        raise inapplicable(
            f"infidelity perturbs inputs, and {type(request).__name__} explains a layer: use it with a method that "
            "explains inputs, or use sensitivity_max"
        )
    spread = "stdev" if isinstance(metric, Infidelity) else "radius"
    value = getattr(metric, spread)
    with at(field_name(type(metric))):
        refuse_samples(metric.n_samples)  # type: ignore[attr-defined]
        if not 0 < value < math.inf:
            raise error(Reason.INVALID_VALUE, f"{value}; a finite number above 0", spread)
    for name in explained:
        refuse_integers("the metric perturbs", name, inputs[name])
