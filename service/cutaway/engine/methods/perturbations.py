"""Methods that replace parts of the inputs and look at what changes: forward passes only."""

from __future__ import annotations

from typing import Any

from captum import attr

from cutaway.engine.finding import Finding
from cutaway.engine.method import EXACT, Method
from cutaway.engine.references import perturbations as references
from cutaway.engine.witness import Question
from cutaway.requests import (
    Attribution,
    FeatureAblation,
    FeaturePermutation,
    Occlusion,
    ShapleyValues,
    ShapleyValueSampling,
)
from cutaway.results import Cause


def _given(question: Question) -> dict[str, Any]:
    """Baselines and masks as Captum takes them; one perturbation a pass, so that each pass has the batch's rows."""
    parts = question.features
    found: dict[str, Any] = {"perturbations_per_eval": 1}
    if parts.baselines:
        found["baselines"] = tuple(parts.baselines[name] for name in parts.explained)
    if parts.numbers:
        found["feature_mask"] = tuple(parts.numbers[name] for name in parts.explained)
    return found


def _windows(question: Question) -> dict[str, Any]:
    request: Any = question.request
    explained = question.explained
    ones = {name: (1,) * len(request.windows[name]) for name in explained}
    return {
        **_given(question),
        "sliding_window_shapes": tuple(tuple(request.windows[name]) for name in explained),
        "strides": tuple(tuple(request.strides.get(name, ones[name])) for name in explained),
    }


def _sampled(question: Question) -> dict[str, Any]:
    request: Any = question.request
    return {**_given(question), "n_samples": request.n_samples}


def _nothing_to_exchange(question: Question) -> Finding | None:
    if question.rows > 1:
        return None
    return Finding(
        Cause.NOT_MOVED,
        "a batch of one has no other row to exchange values with, so every attribution is 0: send several rows",
    )


ROWS: dict[type[Attribution], Method] = {
    FeatureAblation: Method(
        attr.FeatureAblation,
        references.change,
        references.ablated,
        "f(x) - f(x with the feature at its baseline) from raw outputs",
        options=_given,
        perturbs=True,
        by_row=True,
    ),
    Occlusion: Method(
        attr.Occlusion,
        references.change,
        references.ablated,
        "the mean of f(x) - f(x with a window at its baseline) over the windows around an element, from raw outputs",
        options=_windows,
        perturbs=True,
        by_row=True,
    ),
    FeaturePermutation: Method(
        attr.FeaturePermutation,
        references.change,
        references.permuted,
        "f(x) - f(x with the feature's rows in another order) from raw outputs",
        options=_given,
        perturbs=True,
        draws=True,
        moot=_nothing_to_exchange,
    ),
    ShapleyValues: Method(
        attr.ShapleyValues,
        references.shapley,
        references.added,
        "the mean of f(with the feature) - f(without it) over all orders, from raw outputs",
        options=_given,
        perturbs=True,
        adds_up=lambda _: True,
        sums=EXACT,
    ),
    ShapleyValueSampling: Method(
        attr.ShapleyValueSampling,
        references.shapley,
        references.added,
        "the mean of f(with the feature) - f(without it) over the orders drawn, from raw outputs",
        options=_sampled,
        perturbs=True,
        draws=True,
        adds_up=lambda _: True,
        sums=EXACT,
    ),
}
