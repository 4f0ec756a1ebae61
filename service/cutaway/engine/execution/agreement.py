"""Compares the attributions of a request with each other: how far do methods agree?"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import combinations, count
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cutaway.contract import results
from cutaway.contract.requests import Attribution, Combination
from cutaway.contract.results.arrays import examples_first
from cutaway.contract.tensors import by_value
from cutaway.contract.values import changed
from cutaway.engine.execution.main_pass import MainPass
from cutaway.engine.hooks.tokens import MASK
from cutaway.engine.methods.captum_call import method_of
from cutaway.engine.methods.feature_metrics import ranks
from cutaway.engine.model.session import timed
from cutaway.engine.runtime.numerics import from_numpy


class _Compared(NamedTuple):
    """An attribution that others are compared with.

    Attributes:
        number: its number in the result.
        subject: what it has in common with those that it is compared with: target, neuron, places and shapes.
        values: the features of each row, [batch, features].
        has_signs: whether its method gives features signs.
        own: [batch, features], the tokens of each row's own text; None where all features are.
    """

    number: int
    subject: Hashable
    values: Tensor
    has_signs: bool
    own: Tensor | None


def with_agreements(
    result: results.InspectResult, groups: Sequence[Sequence[results.AttributionResult]], main: MainPass
) -> results.InspectResult:
    """Returns ``result`` with how far its attributions agree, if the request asks for it; of a dry run with NaN.

    Args:
        result: with all attributions.
        groups: the same attributions, of each in the request those that it became.
        main: the main pass.
    """
    if not main.plan.request.agreement:
        return result
    compared, rows = [*_compared(result, groups, main)], main.plan.rows
    pairs = [(one, other) for one, other in combinations(compared, 2) if one.subject == other.subject]
    figures = np.full((len(pairs), 3, rows), np.nan)
    with timed(main.timings, "attribution_ms"):
        for row in range(0 if main.plan.request.dry_run else rows):
            side = cache(partial(_side, {each.number: each for each in compared}, row))
            for number, (one, other) in enumerate(pairs):
                is_signed = one.has_signs == other.has_signs
                first, second = (side(each.number, is_signed) for each in (one, other))
                if first is not None and second is not None:
                    figures[number, :, row] = _likeness(first, second)
    agreements = (
        results.Agreement(one.number, other.number, own[0], own[1], own[2], one.has_signs != other.has_signs)
        for (one, other), own in zip(pairs, figures)
    )
    return changed(result, agreements=tuple(agreements))


def _compared(
    result: results.InspectResult, groups: Sequence[Sequence[results.AttributionResult]], main: MainPass
) -> Iterator[_Compared]:
    """Yields the attributions that can be compared, without those whose method has no target, or no features."""
    asked, mask = dict(zip(main.plan.numbers, main.plan.attributions)), main.plan.inputs.get(MASK)
    places = ((number, place) for number, several in enumerate(groups) for place, _ in enumerate(several))
    for each, (number, place), made in zip(count(), places, examples_first(result).attributions):
        features = made.values if made.tokens is None else {made.tokens.input or made.layer: made.tokens.values}
        attribution = asked.get(number)
        if attribution is None or made.error is not None or not method_of(attribution.request).differentiates:
            continue
        if not features or any(values.shape[:1] != (main.plan.rows,) for values in features.values()):
            continue
        values = torch.cat([from_numpy(own).flatten(1) for own in features.values()], dim=1)
        target = attribution.request.target or main.plan.request.target
        shapes = tuple((name, own.shape[1:]) for name, own in features.items())
        subject = by_value((target, place, getattr(attribution.request, "neuron", None), shapes))
        if values.shape[1] > 1:
            ids = (name for name, tensor in main.plan.inputs.items() if not tensor.is_floating_point())
            are_tokens = made.tokens is not None or features.keys() <= {*ids}
            own = mask if are_tokens and mask is not None and mask.shape == values.shape else None
            yield _Compared(each, subject, values, _has_signs(attribution.request), own)


def _has_signs(request: Attribution) -> bool:
    """Returns whether the method tells what is for the target from what is against it."""
    squares = (Combination.SMOOTHGRAD_SQUARE, Combination.VARGRAD)
    is_square = request.noise is not None and request.noise.combination in squares
    return not (is_square or getattr(request, "absolute", False) or getattr(request, "relu", False))


class _Side(NamedTuple):
    """The features of one row: float64, their ranks, both of length 1, and whether each is in the largest tenth."""

    values: Tensor
    ranks: Tensor
    top: Tensor


def _side(compared: Mapping[int, _Compared], row: int, number: int, is_signed: bool) -> _Side | None:
    """Returns the features of a row of an attribution; None if they are all zero, or not finite."""
    values, own = compared[number].values[row].double(), compared[number].own
    if own is not None:
        values = values[own[row].cpu() != 0]
    values, sizes = values if is_signed else values.abs(), values.abs()
    if len(values) < 2 or not sizes.any() or not values.isfinite().all():
        return None
    centred = ranks(values.unsqueeze(0))[0]
    centred = centred - centred.mean()
    least = sizes.topk(max(1, round(len(sizes) / 10))).values[-1]
    values = values / sizes.max()  # whose squares are no infinity
    return _Side(values / values.norm(), centred / centred.norm(), (sizes >= least) & (sizes > 0))


def _likeness(one: _Side, other: _Side) -> tuple[float, float, float]:
    """Returns the cosine, the rank correlation, and the share of the largest features that both have."""
    common = (one.top & other.top).sum() / max(one.top.sum(), other.top.sum())
    return float(one.values @ other.values), float(one.ranks @ other.ranks), float(common)
