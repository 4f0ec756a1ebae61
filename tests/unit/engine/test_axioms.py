"""What attributions must be whatever the method: the axioms that papers prove of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import CheckMode, CheckRequest
from cutaway.contract.results import Check, Verdict
from tests.support.attribution_models import CONVOLUTIONS, IMAGE, paths
from tests.support.checked_attributions import ask, noise, wired

SAMPLES = {"x": np.zeros((2, 4), np.float32)}
ADDING: tuple[ca.Attribution, ...] = (
    ca.IntegratedGradients(n_steps=300),
    ca.DeepLift(),
    ca.DeepLiftShap(baselines=SAMPLES),
    ca.ShapleyValues(),
    ca.ShapleyValueSampling(n_samples=8),
    ca.KernelShap(n_samples=40),
)
NAMES = [type(asked).__name__ for asked in ADDING]
DRAWN = (ca.ShapleyValueSampling, ca.KernelShap)


def twins() -> nn.Module:
    """A network to which its first two inputs are the same."""
    model: Any = wired(lambda m, x: m.b(m.r(m.a(x))), a=lambda: nn.Linear(4, 8), r=nn.ReLU, b=lambda: nn.Linear(8, 3))()
    with torch.no_grad():
        model.a.weight[:, 1] = model.a.weight[:, 0]
    return model


ROWS = noise(2, 4)
ROWS[:, 1] = ROWS[:, 0]


@pytest.mark.parametrize("asked", [each for each in ADDING if not isinstance(each, DRAWN)], ids=NAMES[:4])
def test_a_feature_that_is_there_twice_gets_the_same_twice(asked: ca.Attribution) -> None:
    """Symmetry: two features that the target treats alike, with the same value, have the same attribution. What
    is drawn keeps this only on average."""
    values = ask(twins(), {"x": ROWS}, asked, seed=3).attributions[0].values["x"]
    assert np.allclose(values[:, 0], values[:, 1], rtol=1e-4, atol=1e-4 * np.abs(values).max())


@pytest.mark.parametrize("asked", ADDING[:-1], ids=NAMES[:-1])
def test_a_feature_that_does_nothing_gets_nothing(asked: ca.Attribution) -> None:
    """Dummy: what the target does not depend on has no share in its change."""
    model: Any = twins()
    with torch.no_grad():
        model.a.weight[:, 3] = 0
    values = ask(model, {"x": ROWS}, asked, seed=3).attributions[0].values["x"]
    assert np.abs(values[:, 3]).max() <= 1e-4 * np.abs(values).max()


@pytest.mark.parametrize("asked", ADDING, ids=NAMES)
def test_attributions_add_up_and_a_check_says_so(asked: ca.Attribution) -> None:
    """Completeness, or efficiency: the sum is the target's change from the baseline, and the second check AGREES."""
    result = ask(twins(), {"x": ROWS}, asked, seed=3).attributions[0]
    assert result.value_at_input is not None
    assert result.value_at_baseline is not None
    change = result.value_at_input - result.value_at_baseline
    assert np.allclose(result.values["x"].sum(1), change, rtol=0.02, atol=0.02 * np.abs(change).max())
    assert result.checks[1].verdict is Verdict.AGREES, result.checks[1]


def conserved(wiring: Any, **parts: Any) -> Check:
    model = wired(wiring, **parts)()
    result = ask(model, {"x": noise(3, 4)}, ca.LRP(), check=CheckRequest(CheckMode.SAME_PASS)).attributions[0]
    assert result.convergence_delta is not None
    assert result.value_at_baseline is None
    assert np.allclose(result.convergence_delta, result.values["x"].sum(1) - result.value_at_input, atol=1e-5)
    return result.checks[1]


def test_relevance_is_conserved_where_no_bias_takes_it_up() -> None:
    """Conservation: relevance at the input sums to the target; where biases take some up, the check does not apply and
    names them."""

    def wiring(m: Any, x: Tensor) -> Any:
        return m.b(m.r(m.a(x)))

    bare = conserved(wiring, a=lambda: nn.Linear(4, 8, bias=False), r=nn.ReLU, b=lambda: nn.Linear(8, 3, bias=False))
    assert bare.verdict is Verdict.AGREES
    biased = conserved(wiring, a=lambda: nn.Linear(4, 8), r=nn.ReLU, b=lambda: nn.Linear(8, 3))
    assert biased.verdict is Verdict.NOT_APPLICABLE
    assert "'a', 'b'" in biased.reason


def test_what_flows_through_a_layer_adds_up() -> None:
    """All of the target's change flows through the layer: with steps enough its attributions add up to it."""
    for asked in (paths(n_steps=200)[0], paths(n_steps=200)[2]):
        result = ask(CONVOLUTIONS(), IMAGE, asked).attributions[0]
        assert [check.verdict for check in result.checks] == [Verdict.AGREES] * 2
        assert result.convergence_delta is not None
        assert result.value_at_input is not None
        assert result.value_at_baseline is not None
        summed = result.values["b"].reshape(4, -1).sum(1)
        change = result.value_at_input - result.value_at_baseline
        assert np.allclose(summed - change, result.convergence_delta, atol=1e-6)
