"""KernelShap and Lime: Captum's own answers, held against fits of our own to raw outputs of forward passes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import factorial

import numpy as np
import pytest
import torch
from torch import nn

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest, ClassIndex, Surrogate
from cutaway.contract.results import Cause, Verdict
from cutaway.engine.references import surrogates as references
from cutaway.engine.references.surrogates import FittedRow, jackknife, least_squares
from tests.support.attribution_models import loud
from tests.support.checked_attributions import MLP, ask, noise, verdict
from tests.support.plain_captum import SEED

Build = Callable[[], nn.Module]

PAIRS = np.array([[0, 0, 1, 1, 2, 2, 3, 3]])
OWN = np.array([[0, 0, 1, 1, 2, 2, 3, 3], [0, 1, 2, 3, 0, 1, 2, 3], [0, 0, 0, 1, 1, 1, 2, 3], [3, 3, 3, 2, 2, 2, 1, 0]])


@pytest.mark.parametrize("kind", [ca.KernelShap, ca.Lime])
def test_masks_of_each_example_are_its_own(kind: type[Surrogate]) -> None:
    """Elements of one feature have one number, row by row; the check agrees."""
    got = ask(loud(MLP)(), {"x": noise(4, 8)}, kind(masks={"x": OWN}), seed=SEED).attributions[0]
    for values, numbers in zip(got.values["x"], OWN):
        assert all(len(set(values[numbers == each])) == 1 for each in range(4))
    assert verdict(got) is Verdict.AGREES


def test_kernel_shap_of_every_coalition_is_the_shapley_value() -> None:
    """With many draws of few features, what Captum says is what the sum over all subsets says."""
    model, x = MLP().double(), noise(1, 8, dtype=torch.float64)
    asked = ca.KernelShap(masks={"x": PAIRS}, n_samples=1000)
    got = ask(model, {"x": x}, asked, target=ClassIndex((1,)), seed=SEED, check=CheckRequest(CheckMode.OFF))

    def value(members: tuple[int, ...]) -> float:
        return float(model(torch.where(torch.tensor(np.isin(PAIRS, members)), x, 0.0))[0, 1].detach())

    for feature in range(4):
        others = [each for each in range(4) if each != feature]
        expected = sum(
            factorial(size) * factorial(3 - size) / factorial(4) * (value((*chosen, feature)) - value(chosen))
            for size in range(4)
            for chosen in combinations(others, size)
        )
        assert got.attributions[0].values["x"][0, 2 * feature] == pytest.approx(expected, abs=0.02)


def test_lime_is_least_under_the_lasso() -> None:
    """No step from our fit makes what the Lasso minimises smaller: the optimality conditions hold, within its
    tolerance."""
    numbers = np.random.default_rng(0)
    masks = (numbers.random((40, 6)) < 0.5).astype(np.float64)
    weights, targets = numbers.random(40) + 0.1, masks @ np.array([1.0, -0.5, 0.2, 0, 0, 0.005]) + 3
    found = references.lasso(masks, targets, weights).coefficients
    centred = masks - np.average(masks, axis=0, weights=weights)
    left = targets - np.average(targets, weights=weights) - centred @ found
    pull = centred.T @ (weights * left) / weights.sum()
    assert np.allclose(pull[found != 0], references.PENALTY * np.sign(found[found != 0]), atol=1e-4)
    assert (np.abs(pull[found == 0]) <= references.PENALTY + 1e-4).all()
    assert found[5] == 0


# What is promised besides.

BOTH = (ca.KernelShap(n_samples=30), ca.Lime(n_samples=30))


def test_one_example_may_have_any_target() -> None:
    """A loss, a sum, an element: the scalar is what is fitted."""
    for target in (ca.CrossEntropy((1,)), ca.OutputSum(), ca.MultiIndex(((1,),))):
        for got in ask(loud(MLP)(), {"x": noise(1, 8)}, *BOTH, target=target, seed=SEED).attributions:
            assert verdict(got) is Verdict.AGREES, (target, got.checks)


# Standard errors.


@pytest.mark.slow
@pytest.mark.parametrize("asked", [ca.KernelShap(n_samples=60), ca.Lime(n_samples=60)], ids=lambda a: type(a).__name__)
def test_standard_errors_are_the_scatter_of_seeds(asked: Attribution) -> None:
    """The jackknife of one run says how far the answers of other seeds lie apart, within a factor of two."""
    model, inputs = loud(MLP)(), {"x": noise(1, 8)}
    runs = [ask(model, inputs, asked, seed=seed).attributions[0] for seed in range(40)]
    scatter = np.std([run.values["x"][0] for run in runs], axis=0)
    stated = np.mean([run.standard_errors["x"][0] for run in runs], axis=0)
    assert stated.shape == (8,)
    assert 0.5 < stated.mean() / scatter.mean() < 2, (stated, scatter)


def test_the_jackknife_is_that_of_fits_without_each_draw() -> None:
    """By hand: the fit again, without one draw after the other."""
    generator = np.random.default_rng(0)
    masks = generator.integers(0, 2, (40, 5)).astype(float)
    targets = masks @ np.arange(5.0) + generator.normal(size=40)
    weights = generator.uniform(0.5, 2, 40)
    fitted = FittedRow(masks, targets, weights, least_squares(masks, targets, weights))
    without = [least_squares(*(np.delete(each, draw, axis=0) for each in (masks, targets, weights))).coefficients
               for draw in range(40)]  # fmt: skip
    by_hand = np.sqrt(39 / 40 * ((without - np.mean(without, axis=0)) ** 2).sum(axis=0))
    np.testing.assert_allclose(jackknife(fitted, np.arange(5), 0), by_hand, rtol=1e-9)
    few = FittedRow(masks[:6], targets[:6], weights[:6], fitted.fit)
    assert np.isinf(jackknife(few, np.arange(5), 0)).all()


@pytest.mark.parametrize("samples", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", [ca.KernelShap, ca.Lime])
def test_too_few_samples_have_no_finite_standard_errors(kind: type[Surrogate], samples: int) -> None:
    """Also of features that are in all samples or in none, whose coefficients are 0.
    The check says that the fit is open, and does not fail."""
    (got,) = ask(loud(MLP)(), {"x": noise(2, 8)}, kind(n_samples=samples), seed=SEED).attributions
    values, errors = got.values["x"], got.standard_errors["x"]
    assert np.isinf(errors[np.abs(values) > 1e-5]).all()  # a Lasso leaves rounding errors of 1e-6 for zeros
    assert np.isinf(errors).all() or kind is ca.Lime
    assert got.checks[0].cause is Cause.UNDERDETERMINED


def test_no_standard_errors_without_a_check() -> None:
    """They need passes of their own; and a dry run knows their shapes."""
    (got,) = ask(MLP(), {"x": noise(1, 8)}, ca.KernelShap(), seed=SEED, check=CheckRequest(CheckMode.OFF)).attributions
    assert got.standard_errors == {}


def test_a_row_whose_fit_says_nothing_is_told_of_itself() -> None:
    """LIME's penalty makes the coefficients of a small row 0; the others of its batch are judged as without it."""
    x = noise(3, 8)
    x[1] *= 1e-4
    got = ask(loud(MLP)(), {"x": x}, ca.Lime(n_samples=60), seed=SEED).attributions[0]
    assert not got.values["x"][1].any()
    rows = got.checks[0].rows
    assert [row.verdict for row in rows] == [Verdict.AGREES, Verdict.INCONCLUSIVE, Verdict.AGREES]
    assert rows[1].cause is Cause.NOT_MOVED
    assert "of this row 0, because the features change the target too little, by" in rows[1].reason
    assert "of row 1 0, because the features change the target too little, by" in got.checks[0].reason


def test_a_row_whose_draws_are_too_few_is_told_beside_one_that_the_penalty_makes_zero() -> None:
    """Both are doubted, and the row that is neither is not."""
    x = noise(3, 8)
    x[1] *= 1e-4
    told = set()
    for seed in range(8):
        got = ask(loud(MLP)(), {"x": x}, ca.Lime(masks={"x": PAIRS}, n_samples=7), seed=seed).attributions[0]
        told.add(tuple(row.verdict for row in got.checks[0].rows))
        assert not got.checks[0].rows or got.checks[0].rows[1].verdict is Verdict.INCONCLUSIVE
    assert {(Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE, Verdict.AGREES),
            (Verdict.AGREES, Verdict.INCONCLUSIVE, Verdict.AGREES)} <= told  # fmt: skip
