"""Explanations by perturbation: Captum's own answers, held against raw outputs of forward passes."""

from __future__ import annotations

from itertools import combinations
from math import factorial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import cutaway as ca
from cutaway.contract.requests import CheckMode, CheckRequest, ClassIndex
from cutaway.contract.results import Verdict
from tests.support.attribution_models import GAINED, SEVERAL
from tests.support.checked_attributions import MLP, ask, noise


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
    inputs = {name: tensor[:2] for name, tensor in SEVERAL.items()}
    masks = {"x": np.array([[0, 0, 1, 1], [0, 1, 1, 1]]), "y": np.array([[0, 2, 2]])}
    for kind in (ca.ShapleyValues, ca.ShapleyValueSampling):
        got = ask(GAINED(), inputs, kind(inputs=("x", "y"), masks=masks)).attributions[0]
        assert got.convergence_delta is not None
        assert got.value_at_baseline is not None
        assert np.abs(got.convergence_delta).max() < 1e-5
        assert [check.verdict for check in got.checks] == [Verdict.AGREES] * 2


def test_a_feature_of_two_inputs_is_ablated_in_both() -> None:
    """Its elements have the same value, wherever they are: the change of the target without all of them."""
    model, masks = GAINED(), {"x": np.array([[0, 0, 1, 1]]), "y": np.array([[1, 2, 2]])}
    asked = ca.FeatureAblation(inputs=("x", "y"), masks=masks)
    got = ask(model, SEVERAL, asked, target=ClassIndex((1,))).attributions[0]
    for feature in range(3):
        left = {name: SEVERAL[name] * torch.tensor(mask != feature) for name, mask in masks.items()}
        change = (model(**SEVERAL) - model(**{**SEVERAL, **left}))[:, 1].detach().numpy()
        for name, mask in masks.items():
            values = got.values[name][:, mask[0] == feature]
            np.testing.assert_allclose(values, np.broadcast_to(change[:, None], values.shape), rtol=1e-4, atol=1e-6)
    assert got.checks[0].verdict is Verdict.AGREES


@pytest.mark.parametrize("scale", [-1, 7, 2**61], ids=["negative", "with gaps", "far apart"])
def test_any_integers_number_features(scale: int) -> None:
    """Numbers say what belongs together, and in which order it is drawn, whatever their size is."""
    groups = np.array([[0, 1, 2, 3, 3, 2, 1, 0]])

    def found(mask: np.ndarray[Any, Any]) -> Any:
        asked = ca.ShapleyValueSampling(masks={"x": mask}, n_samples=2)
        return ask(MLP(), {"x": noise(2, 8)}, asked, target=ClassIndex((1,)), seed=1).attributions[0].values["x"]

    numbered = np.sort(scale * np.arange(4))[groups]  # in the same order
    np.testing.assert_array_equal(found(numbered - 3), found(groups))


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
