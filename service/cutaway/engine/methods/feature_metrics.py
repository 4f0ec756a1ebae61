"""Metrics of the features of an attribution: what the model does without them, where they are, and how many count."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from captum import metrics as captum_metrics
from torch import Tensor

from cutaway.contract import requests
from cutaway.contract.errors import Reason, at, error
from cutaway.contract.results import TokenAttribution
from cutaway.contract.tensors import as_array
from cutaway.contract.values import cached_property
from cutaway.engine.hooks.tokens import MASK
from cutaway.engine.methods import spec
from cutaway.engine.methods.captum_call import explain
from cutaway.engine.model.inspected_model import Inputs
from cutaway.engine.passes.features import baselines, feature_numbers, of_only_input, refuse_unexplained
from cutaway.engine.passes.pass_recorder import (
    AttributionProblem,
    Values,
    concatenated,
    run_copies_separately,
)

MAX_ROWS_PER_PASS = 256
"""Up to so many rows of perturbed inputs run in one pass; more, one batch at a time."""


@dataclass(frozen=True)
class Judged:
    """An attribution that metrics judge.

    Attributes:
        problem: what it explains.
        values: its values.
        tokens: its sums by token, of an embedding of token ids; else None.
        known: what several attributions of one problem have in common.
    """

    problem: AttributionProblem
    values: Values
    tokens: TokenAttribution | None = None
    known: dict[Hashable, Any] = field(default_factory=dict)

    @cached_property
    def flat(self) -> Tensor:
        """The numbers of each row, [batch, numbers], float64."""
        return torch.cat([of_rows(self.problem, name, value).double() for name, value in self.values.items()], dim=1)

    def at_random(self) -> Judged:
        """Returns the same with random numbers."""
        values = {name: torch.randn(value.shape).to(value) for name, value in self.values.items()}
        tokens = self.tokens and replace(self.tokens, values=torch.randn(self.tokens.values.shape).numpy())
        return Judged(self.problem, values, tokens, self.known)

    def again(self, problem: AttributionProblem, forward: Callable[..., Tensor] | None = None) -> Tensor:
        """Returns the numbers of the explanation of another ``problem``, with the same draws, as `flat`."""
        with torch.enable_grad():
            return Judged(problem, explain(problem, forward or problem.forward)).flat

    def moved(self, change: Callable[[Tensor], Tensor]) -> AttributionProblem:
        """Returns the problem with what ``change`` makes of each explained input."""
        inputs = {name: change(self.problem.inputs[name]) for name in self.problem.explained}
        return replace(self.problem, inputs={**self.problem.inputs, **inputs})


def of_rows(problem: AttributionProblem, name: str, value: Tensor) -> Tensor:
    """Returns the numbers of each row, [batch, numbers].

    Raises:
        InvalidArgument: ``METHOD_INAPPLICABLE``: axis 0 of ``value`` does not have the rows.
    """
    if value.shape[:1] != (problem.rows,):
        raise spec.inapplicable(
            f"{name or 'the output'!r} has shape {list(value.shape)}, whose axis 0 is not the batch of "
            f"{problem.rows}: the metric is one number for each example"
        )
    return value.detach().reshape(problem.rows, -1)


Measured: TypeAlias = "tuple[Tensor, Tensor | None]"
"""The value of each row, and the curve [batch, points] of a metric with steps."""


# Features, which are removed in the order of their relevance.


class Features(NamedTuple):
    """The features of an attribution that can be removed.

    Attributes:
        relevance: [batch, features], float64.
        numbers: by input, the feature of each element, [batch, elements].
        own: [batch, features], whether a row has the feature: padding is none.
        fill: by input, what takes the place of removed elements, from the elements [batch, ...] that are.
    """

    relevance: Tensor
    numbers: Mapping[str, Tensor]
    own: Tensor
    fill: Mapping[str, Callable[[Tensor], Tensor]]

    @property
    def counts(self) -> Tensor:
        """The number of features of each row, [batch]."""
        return self.own.sum(dim=1)

    def ranks(self, *, least_first: bool = False) -> Tensor:
        """Returns the place of each feature in the order of relevance, [batch, features]; those of others are last."""
        ordered = self.relevance if least_first else -self.relevance
        order = ordered.masked_fill(~self.own, math.inf).argsort(dim=1, stable=True)
        return torch.empty_like(order).scatter_(1, order, torch.arange(order.shape[1]).expand_as(order))

    def without(self, removed: Tensor) -> dict[str, Tensor]:
        """Returns the inputs without ``removed`` features, [batch, features]."""
        return {name: fill(removed.gather(1, self.numbers[name])) for name, fill in self.fill.items()}


def features_of(metric: Any, judged: Judged) -> Features:
    """Returns the features of tokens, of the metric's or the method's own masks, pixels of pictures, or elements."""
    problem, given = judged.problem, getattr(metric, "masks", {})
    names: tuple[str, ...]
    if judged.tokens is not None and judged.tokens.input:
        names, values = (judged.tokens.input,), {judged.tokens.input: torch.from_numpy(judged.tokens.values)}
    elif isinstance(problem.request, requests.LayerAttribution):
        raise spec.inapplicable("it removes features of inputs, and the method explains a layer that has none of them")
    else:
        names, values = problem.explained, judged.values
    weights: Mapping[str, Tensor] = {}
    if given:
        with at(requests.field_name(type(metric))):
            numbers = feature_numbers(metric, problem.inputs, names)
    elif getattr(problem.request, "masks", None):
        numbers, weights = dict(problem.features.numbers), problem.features.shares()
    else:
        numbers = _pixels(problem.inputs, names)
    rows = problem.rows
    flat = {name: mask.cpu().expand(rows, *mask.shape[1:]).reshape(rows, -1) for name, mask in numbers.items()}
    relevance = torch.zeros(rows, 1 + max(int(mask.max()) for mask in flat.values()), dtype=torch.float64)
    for name in names:
        shares = weights.get(name, torch.ones(()))
        by_element = (values[name].detach().cpu().double() * shares).reshape(rows, -1)
        relevance.scatter_add_(1, flat[name], by_element)
    own = torch.ones_like(relevance, dtype=torch.bool)
    mask = problem.inputs.get(MASK)
    if judged.tokens is not None and mask is not None and mask.shape == own.shape and not given:
        own = mask.cpu() != 0
    return Features(relevance, flat, own, _fills(metric, problem, names))


def _pixels(inputs: Inputs, names: Sequence[str]) -> dict[str, Tensor]:
    """Returns the number of each element: the channels of a pixel of pictures [batch, channels, height, width] have
    one."""
    numbers, first = {}, 0
    for name in names:
        shape = inputs[name].shape[1:]
        inner = shape[1:] if len(shape) == 3 else shape
        count = math.prod(inner)
        numbers[name] = torch.arange(first, first + count).reshape(1, *([1] * (len(shape) - len(inner))), *inner)
        numbers[name] = numbers[name].expand(1, *shape)
        first += count
    return numbers


def _fills(metric: Any, problem: AttributionProblem, names: Sequence[str]) -> dict[str, Callable[[Tensor], Tensor]]:
    given = getattr(metric, "baselines", {})
    with at(requests.field_name(type(metric))):
        starts = baselines(given, problem.inputs, names, problem.model.special_tokens)
    fills: dict[str, Callable[[Tensor], Tensor]] = {}
    for name in names:
        tensor, start = problem.inputs[name], starts[name]
        if not given and name in problem.baselines and not isinstance(problem.request, requests.Expectation):
            start = problem.baselines[name]
        if getattr(metric, "imputation", None) is requests.Imputation.NOISY_LINEAR:
            fills[name] = partial(_imputed, tensor)
        else:
            fills[name] = partial(_replaced, tensor, start)
    return fills


def _replaced(tensor: Tensor, start: Tensor, gone: Tensor) -> Tensor:
    return torch.where(gone.reshape(tensor.shape).to(tensor.device), start, tensor)


_NOISE = 0.01
"""The standard deviation of ROAD's noise, in those of the picture."""


def _imputed(tensor: Tensor, gone: Tensor) -> Tensor:
    """Returns pictures [batch, channels, height, width] with the pixels of ``gone`` from their neighbours.

    Each is the mean of its neighbours; the four beside it weigh twice as much as the four at its corners. Those that
    are gone too are unknowns of one linear system. Noise is added. Rong et al. 2022, arXiv:2202.00449.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.linalg import spsolve

    if tensor.ndim != 4:
        raise spec.inapplicable(
            f"noisy_linear is for pictures [batch, channels, height, width], not {tensor.ndim - 1}-d rows"
        )
    height, width = tensor.shape[2:]
    filled = tensor.detach().cpu().double().clone()
    for row, removed in enumerate(gone.reshape(tensor.shape).cpu()[:, 0].numpy()):
        places = np.argwhere(removed)
        if not len(places):
            continue
        unknown = np.full((height, width), -1)
        unknown[tuple(places.T)] = np.arange(len(places))
        entries, known = [(index, index, 1.0) for index in range(len(places))], np.zeros((len(places), tensor.shape[1]))
        for index, (y, x) in enumerate(places):
            beside = [(y + dy, x + dx, 1 / (6 if 0 in (dy, dx) else 12)) for dy, dx in _NEIGHBOURS]
            inside = [(v, u, weight) for v, u, weight in beside if 0 <= v < height and 0 <= u < width]
            total = sum(weight for *_, weight in inside)
            for v, u, weight in inside:
                if removed[v, u]:
                    entries.append((index, unknown[v, u], -weight / total))
                else:
                    known[index] += weight / total * filled[row, :, v, u].numpy()
        if len(places) == height * width:
            continue  # nothing is known: the noise alone would be left
        rows, columns, weights = zip(*entries)
        solved = spsolve(coo_matrix((weights, (rows, columns))).tocsc(), known).reshape(len(places), -1)
        noise = _NOISE * filled[row].std(dim=(1, 2)).numpy() * torch.randn(solved.shape).numpy()
        filled[row, :, places[:, 0], places[:, 1]] = torch.from_numpy((solved + noise).T)
    return filled.to(tensor)


_NEIGHBOURS = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if (dy, dx) != (0, 0)]


def _targets(problem: AttributionProblem, points: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """Returns the target of each row at each of ``points``, inputs by name, [points, batch], float64."""
    size = 1 if problem.is_row_specific else max(1, MAX_ROWS_PER_PASS // problem.rows)
    found = []
    with torch.no_grad():
        for first in range(0, len(points), size):
            chunk = points[first : first + size]
            many = problem if len(chunk) == 1 else problem.of_rows([*range(problem.rows)] * len(chunk))
            inputs = {**many.inputs, **concatenated(chunk)}
            others = (name for name in inputs if name not in problem.explained)
            output = many.forward(*(inputs[name] for name in (*problem.explained, *others)))
            found.append(many.target.scalars(output).double().cpu().reshape(len(chunk), -1))
    return torch.cat(found)


def _curve(judged: Judged, features: Features, steps: int, *, least_first: bool = False, keeps: bool = False) -> Tensor:
    """Returns the target [batch, steps + 1] while features are removed in ``steps``, or with ``keeps`` come back."""
    ranks, points = features.ranks(least_first=least_first), []
    for step in range(steps + 1):
        reached = ranks < (features.counts * step / steps).round().unsqueeze(1)
        points.append(features.without((~reached if keeps else reached) & features.own))
    return _targets(judged.problem, points).T


def _area(curve: Tensor) -> Tensor:
    return torch.trapezoid(curve, dim=1) / (curve.shape[1] - 1)


def deletion(metric: requests.Deletion, judged: Judged) -> Measured:
    """Returns the area below the target while features are removed, the most relevant first, and the curve."""
    curve = _curve(judged, features_of(metric, judged), metric.n_steps)
    return _area(curve), curve


def insertion(metric: requests.Insertion, judged: Judged) -> Measured:
    """Returns the area below the target while features come back, the most relevant first, and the curve."""
    curve = _curve(judged, features_of(metric, judged), metric.n_steps, keeps=True)
    return _area(curve), curve


def gain(metric: requests.SymmetricRelevanceGain, judged: Judged) -> Measured:
    """Returns the area between the curves of both orders, and their difference."""
    features = features_of(metric, judged)
    least, most = (_curve(judged, features, metric.n_steps, least_first=first) for first in (True, False))
    return _area(least) - _area(most), least - most


def correlation(metric: requests.FaithfulnessCorrelation, judged: Judged) -> Measured:
    """Returns Pearson's correlation, over sets S, of the sum of relevance in S with f(x) - f(x without S)."""
    features = features_of(metric, judged)
    if "sets" not in judged.known:
        sizes = (features.counts * metric.fraction).round().clamp(min=1).unsqueeze(1)
        draws = [torch.rand(features.own.shape).masked_fill(~features.own, math.inf) for _ in range(metric.n_samples)]
        judged.known["sets"] = sets = [draw.argsort(dim=1).argsort(dim=1) < sizes for draw in draws]
        here, *without = _targets(judged.problem, [features.without(one) for one in [torch.zeros_like(sets[0]), *sets]])
        judged.known["falls"] = here - torch.stack(without)
    sums = torch.stack([(features.relevance * one).sum(dim=1) for one in judged.known["sets"]])
    return pearson(sums.T, judged.known["falls"].T), None


def of_most_relevant(metric: Any, judged: Judged, *, keeps: bool) -> Measured:
    """Returns the fall of the target without the most relevant features, or if it ``keeps`` only these."""
    features = features_of(metric, judged)
    most = features.ranks() < (features.counts * metric.fraction).round().clamp(min=1).unsqueeze(1)
    removed = (~most if keeps else most) & features.own
    here, there = _targets(judged.problem, [features.without(torch.zeros_like(most)), features.without(removed)])
    return here - there, None


def as_tuple(inputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Returns what Captum passes, one tensor or several, as several."""
    return inputs if isinstance(inputs, tuple) else (inputs,)


def infidelity(metric: requests.Infidelity, judged: Judged) -> Measured:
    """Returns the mean over samples of ``(sum of noise * attribution - (f(x) - f(x - noise)))**2``, [batch].

    The noise is ``stdev * torch.randn_like(x)``, input by input. Yeh et al. 2019, arXiv:1901.09392.
    """
    problem = judged.problem

    def perturbed(inputs: Tensor | tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        noise = tuple(metric.stdev * torch.randn_like(tensor) for tensor in as_tuple(inputs))
        return noise, tuple(tensor - change for tensor, change in zip(as_tuple(inputs), noise))

    def target(*tensors: Tensor) -> Tensor:
        output = problem.forward(*tensors)
        return output if problem.target.positions is not None else problem.target.scalars(output)

    def forward(*tensors: Tensor) -> Tensor:
        rows = len(tensors[0])
        if rows <= MAX_ROWS_PER_PASS and not problem.is_row_specific:
            return target(*tensors)
        return run_copies_separately(target, rows // problem.rows)(*tensors)

    return captum_metrics.infidelity(
        forward,
        perturbed,
        tuple(tensor.contiguous() for tensor in problem.arguments),
        tuple(judged.values[name].contiguous() for name in problem.explained),
        additional_forward_args=problem.additional_inputs or None,
        target=problem.target.captum_target,
        n_perturb_samples=metric.n_samples,
    ), None


def pearson(one: Tensor, other: Tensor) -> Tensor:
    """Returns the correlation of each row of [batch, numbers]; NaN where one of them is constant."""
    first: Tensor = one - one.mean(dim=1, keepdim=True)
    second: Tensor = other - other.mean(dim=1, keepdim=True)
    lengths: Tensor = first.norm(dim=1) * second.norm(dim=1)
    return (first * second).sum(dim=1) / lengths


def spearman(one: Tensor, other: Tensor) -> Tensor:
    """Returns the rank correlation of each row of [batch, numbers]; equal numbers have their mean rank."""
    return pearson(ranks(one), ranks(other))


def ranks(values: Tensor) -> Tensor:
    """Returns the rank of each number in its row of [batch, numbers]; equal ones have the mean of theirs."""
    ordered = values.cpu().contiguous().sort(dim=1).values
    below, not_above = (torch.searchsorted(ordered, values.cpu().contiguous(), side=side) for side in ("left", "right"))
    return (below + not_above).double() / 2


# Complexity, and localisation.


def _shares(judged: Judged, metric: Any) -> Tensor:
    """Returns the magnitude of each feature, [batch, features]; of a layer of each number."""
    is_of_layer = isinstance(judged.problem.request, requests.LayerAttribution) and judged.tokens is None
    return judged.flat.abs() if is_of_layer else features_of(metric, judged).relevance.abs()


def sparseness(metric: requests.Sparseness, judged: Judged) -> Measured:
    """Returns ``1 - 2 * sum over k of a_k / |a|_1 * (n - k + 1/2) / n``, of magnitudes ``a_1 <= ... <= a_n``."""
    ordered = _shares(judged, metric).sort(dim=1).values
    count = ordered.shape[1]
    weights = (count - torch.arange(1, count + 1, device=ordered.device) + 0.5) / count
    return 1 - 2 * (ordered / ordered.sum(dim=1, keepdim=True) * weights).sum(dim=1), None


def entropy(magnitudes: Tensor) -> Tensor:
    """Returns ``- sum of p * log p`` of each row, with ``p`` the part that each number has of the sum."""
    terms: Tensor = torch.special.entr(magnitudes / magnitudes.sum(dim=1, keepdim=True))
    return terms.sum(dim=1)


def complexity(metric: requests.Complexity, judged: Judged) -> Measured:
    """Returns the entropy of the features."""
    return entropy(_shares(judged, metric)), None


def effective(metric: requests.EffectiveComplexity, judged: Judged) -> Measured:
    """Returns the number of features above the threshold."""
    magnitudes = _shares(judged, metric)
    return (magnitudes > metric.threshold * magnitudes.amax(dim=1, keepdim=True)).sum(dim=1), None


def _region(metric: requests.Localisation, judged: Judged) -> tuple[Features, Tensor]:
    """Returns the features, and which of them are inside the region, [batch, features]."""
    features = features_of(metric, judged)
    inside = torch.zeros_like(features.own)
    with at(requests.field_name(type(metric))), at("regions.by_input"):
        regions = of_only_input(metric.regions, tuple(features.numbers))
        refuse_unexplained(regions, "region", tuple(features.numbers))
        for name, given in regions.items():
            shape, marked = judged.problem.inputs[name].shape, torch.from_numpy(as_array(given) != 0)
            try:
                marked = marked.expand(shape).reshape(len(inside), -1)
            except RuntimeError:
                what = f"{list(marked.shape)}; the input is {list(shape)}: send one row or a row an example"
                raise error(Reason.INPUT_SHAPE, what, name) from None
            inside |= (
                torch.zeros_like(inside, dtype=torch.int64).scatter_add(1, features.numbers[name], marked.long()) > 0
            )
    return features, inside & features.own


def pointing(metric: requests.PointingGame, judged: Judged) -> Measured:
    """Returns whether the most relevant feature is inside of the region."""
    features, inside = _region(metric, judged)
    return ((features.ranks() == 0) & inside).any(dim=1), None


def mass(metric: requests.RelevanceMass, judged: Judged) -> Measured:
    """Returns the part of the positive relevance that is inside of the region."""
    features, inside = _region(metric, judged)
    positive = features.relevance.clamp(min=0)
    return (positive * inside).sum(dim=1) / positive.sum(dim=1), None


def rank(metric: requests.RelevanceRank, judged: Judged) -> Measured:
    """Returns the part of the region that as many most relevant features fill."""
    features, inside = _region(metric, judged)
    size = inside.double().sum(dim=1)
    return ((features.ranks() < size.unsqueeze(1)) & inside).sum(dim=1) / size, None
