"""Explanations by perturbation: Captum's own answers, held against raw outputs of forward passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from math import factorial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import CheckMode, CheckRequest, ClassIndex, CrossEntropy, Perturbation
from cutaway.contract.results import Cause, Verdict
from tests.support.checked_attributions import CHECKED, CNN, MLP, RANDOM, ask, noise, verdict
from tests.support.perturbation_models import (
    GAINED,
    ONE_NUMBER,
    SEED,
    TOKENS,
    ids,
)

Build = Callable[[], nn.Module]


class Case(NamedTuple):
    """A network, its inputs for a number of rows, and the perturbations that fit it."""

    build: Build
    inputs: Callable[[int], Mapping[str, Tensor]]
    asked: tuple[Perturbation, ...]


QUARTERS = np.repeat(np.repeat(np.arange(4).reshape(2, 2), 4, 0), 4, 1)
CASES: dict[str, Case] = {
    "perceptron": Case(
        MLP,
        lambda rows: {"x": noise(rows, 8)},
        (
            ca.FeatureAblation(),
            ca.FeatureAblation(baselines={"x": 0.5}, masks={"x": np.array([[7, 7, -1, -1, 3, 3, 3, 9]])}),
            ca.Occlusion(windows={"x": (3,)}, strides={"x": (2,)}, baselines={"x": -0.5}),
            ca.FeaturePermutation(),
            ca.ShapleyValues(masks={"x": np.array([[0, 0, 1, 1, 2, 2, 3, 3]])}),
            ca.ShapleyValueSampling(n_samples=4, baselines={"x": 0.25}),
        ),
    ),
    "convolutions": Case(
        CNN,
        lambda rows: {"x": noise(rows, 3, 8, 8)},
        (
            ca.FeatureAblation(masks={"x": np.broadcast_to(QUARTERS, (1, 3, 8, 8))}),
            ca.Occlusion(windows={"x": (3, 3, 5)}, strides={"x": (3, 2, 4)}),
            ca.FeaturePermutation(masks={"x": np.broadcast_to(QUARTERS, (1, 3, 8, 8))}),
            ca.ShapleyValues(masks={"x": np.broadcast_to(QUARTERS, (1, 3, 8, 8))}),
            ca.ShapleyValueSampling(n_samples=3, masks={"x": np.broadcast_to(QUARTERS, (1, 3, 8, 8))}),
        ),
    ),
    "token ids": Case(
        TOKENS,
        lambda rows: {"ids": ids(rows), "weight": noise(rows, 5)},
        (
            ca.FeatureAblation(inputs=("ids",)),
            ca.FeatureAblation(inputs=("ids", "weight"), baselines={"ids": 3}),
            ca.Occlusion(inputs=("ids",), windows={"ids": (2,)}),
            ca.FeaturePermutation(inputs=("ids",)),
            ca.ShapleyValues(inputs=("ids",)),
            ca.ShapleyValueSampling(inputs=("ids",), n_samples=4, baselines={"ids": np.full((1, 5), 7)}),
        ),
    ),
    "several inputs": Case(  # "gain" has no mask, and is one feature
        GAINED,
        lambda rows: {"x": noise(rows, 4), "y": noise(rows, 3, seed=2), "gain": noise(rows, seed=3)},
        (
            ca.FeatureAblation(),
            ca.FeatureAblation(masks={"y": np.array([[5, 5, 6]]), "x": np.array([[6, 0, 0, 5]])}),
            ca.Occlusion(inputs=("x", "y"), windows={"x": (2,), "y": (2,)}),
            ca.FeaturePermutation(),
            ca.ShapleyValues(inputs=("y", "gain")),
            ca.ShapleyValueSampling(n_samples=3),
        ),
    ),
    "one number an example": Case(
        ONE_NUMBER,
        lambda rows: {"x": noise(rows, 6)},
        (
            ca.FeatureAblation(baselines={"x": 1.0}),
            ca.Occlusion(windows={"x": (6,)}),
            ca.FeaturePermutation(),
            ca.ShapleyValues(masks={"x": np.array([[0, 1, 2, 0, 1, 2]])}),
            ca.ShapleyValueSampling(n_samples=2),
        ),
    ),
}


# Captum gone wrong.

SPOILED: tuple[Perturbation, ...] = (
    ca.FeatureAblation(inputs=("x",), baselines={"x": 0.5}),
    ca.Occlusion(inputs=("x",), baselines={"x": 0.5}, windows={"x": (2,)}),
    ca.FeaturePermutation(inputs=("x",)),
    ca.ShapleyValues(inputs=("x",), baselines={"x": 0.5}),
    ca.ShapleyValueSampling(inputs=("x",), baselines={"x": 0.5}, n_samples=4),
)
INPUTS = CASES["several inputs"].inputs(3)


# What is promised besides.


def test_shapley_values_are_those_of_the_subset_formula() -> None:
    """The sum over all subsets of the other features, weighted as Shapley did, gives what Captum says."""
    model, x = MLP().double(), noise(1, 8, dtype=torch.float64)
    groups = np.array([[0, 1, 2, 3, 3, 2, 1, 0]])
    result = ask(model, {"x": x}, ca.ShapleyValues(masks={"x": groups}), target=ClassIndex((1,)))

    def value(members: tuple[int, ...]) -> float:
        return float(model(torch.where(torch.tensor(np.isin(groups, members)), x, 0.0))[0, 1].detach())

    for feature in range(4):
        others = [each for each in range(4) if each != feature]
        expected = sum(
            factorial(size) * factorial(3 - size) / factorial(4) * (value((*chosen, feature)) - value(chosen))
            for size in range(4)
            for chosen in combinations(others, size)
        )
        assert result.attributions[0].values["x"][0, feature] == pytest.approx(expected, rel=1e-5)


def test_shapley_values_add_up_with_every_feature_counted_once() -> None:
    """Features of several elements, across inputs and other for each row: the convergence delta is rounding."""
    inputs = CASES["several inputs"].inputs(2)
    masks = {"x": np.array([[0, 0, 1, 1], [0, 1, 1, 1]]), "y": np.array([[0, 2, 2]])}
    for kind in (ca.ShapleyValues, ca.ShapleyValueSampling):
        got = ask(GAINED(), inputs, kind(inputs=("x", "y"), masks=masks)).attributions[0]
        assert got.convergence_delta is not None
        assert got.value_at_baseline is not None
        assert np.abs(got.convergence_delta).max() < 1e-5
        assert [check.verdict for check in got.checks] == [Verdict.AGREES] * 2


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("asked", SPOILED, ids=lambda asked: type(asked).__name__)
def test_perturbations_see_edits_and_targets_of_rows(asked: Perturbation, mode: CheckMode) -> None:
    """An edit of one row is in force in every pass; a loss against labels of the rows' own is explained."""
    more: dict[str, Any] = {"check": CheckRequest(mode), "seed": SEED, "target": CrossEntropy(labels=(0, 1, 2))}
    plain = ask(GAINED(), INPUTS, asked, **more).attributions[0]
    edited = ask(GAINED(), INPUTS, asked, edits=(ca.Scale("a", factor=3.0, rows=(1,)),), **more).attributions[0]
    assert verdict(plain) is verdict(edited) is Verdict.AGREES
    if not isinstance(asked, ca.FeaturePermutation):
        assert np.array_equal(plain.values["x"][0], edited.values["x"][0])
    assert not np.array_equal(plain.values["x"][1], edited.values["x"][1])


def test_no_graph_is_built_and_passes_are_counted() -> None:
    """Forward passes only: one for the prediction, one at the input, one a feature, one at the baseline."""
    built: list[bool] = []
    model: Any = MLP()
    inner = model.wiring

    def watched(m: Any, x: Tensor) -> Tensor:
        output = inner(m, x)
        built.append(output.requires_grad)
        return output

    model.wiring = watched
    result = ask(model, {"x": noise(2, 8)}, ca.FeatureAblation(), check=CheckRequest(CheckMode.OFF))
    assert (result.provenance.forwards, result.provenance.backwards) == (1 + 1 + 8 + 1, 0)
    assert not any(built[1:])


# Seeds.

DRAWING = (ca.FeaturePermutation(), ca.ShapleyValueSampling(n_samples=2))


@pytest.mark.parametrize("build", [MLP, RANDOM], ids=["fixed", "random"])
def test_the_same_seed_gives_the_same_attribution_bit_for_bit(build: Build) -> None:
    """Whatever the generators did before, and whatever the model itself draws; another seed gives another answer."""
    answers = []
    for seed, before in ((SEED, 1), (SEED, 2), (SEED + 1, 2)):
        torch.manual_seed(before)
        result = ask(build(), {"x": noise(4, 8)}, *DRAWING, seed=seed, check=CheckRequest(CheckMode.OFF))
        assert result.provenance.seed == seed
        answers.append([got.values["x"] for got in result.attributions])
    assert all(np.array_equal(one, other) for one, other in zip(answers[0], answers[1]))
    assert not any(np.array_equal(one, other) for one, other in zip(answers[0], answers[2]))


def test_without_a_seed_one_is_drawn_and_stated() -> None:
    """The seed in the reply gives the reply again; two requests without one have two."""
    first, second = (ask(MLP(), {"x": noise(4, 8)}, *DRAWING) for _ in range(2))
    assert 0 <= first.provenance.seed < 2**63
    assert first.provenance.seed != second.provenance.seed
    again = ask(MLP(), {"x": noise(4, 8)}, *DRAWING, seed=first.provenance.seed)
    for one, other in zip(first.attributions, again.attributions):
        assert np.array_equal(one.values["x"], other.values["x"])
    assert ask(MLP(), {"x": noise(4, 8)}, ca.FeatureAblation()).provenance.seed == 0


def test_drawing_leaves_the_generators_of_the_process_alone() -> None:
    """What is drawn after a request is what would have been drawn without it."""
    model = MLP()
    before = torch.get_rng_state()
    ask(model, {"x": noise(4, 8)}, *DRAWING, seed=SEED, check=CheckRequest(CheckMode.OFF))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_that_draws_does_not_disturb_what_captum_draws() -> None:
    """The hooks see Captum's very orders, though the model draws between them: the same pass matches, and is doubtful
    for no other reason than that the model draws."""
    result = ask(RANDOM(), {"x": noise(4, 8)}, *DRAWING, seed=SEED)
    for check in (got.checks[0] for got in result.attributions):
        assert check.max_relative_error <= check.tolerance
        assert (check.verdict, check.cause) == (Verdict.INCONCLUSIVE, Cause.RANDOM_FORWARD)


# What cannot be asked.
