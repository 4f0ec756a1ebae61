"""A gradient that is wrong by a few percent is found out on every kind of network, and a right one is not doubted."""

from __future__ import annotations

import pytest
import torch

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode
from cutaway.contract.results import Cause, Verdict
from tests.support.checked_attributions import CHECKED, verdict
from tests.support.scaled_gradients import NETWORKS, explained

OFTEN, SELDOM = (0.8, 1.0, 1.01, -1.0), (0.5, 0.95, 1.05, 1.2, 2.0)
FACTORS = [*OFTEN, *(pytest.param(factor, marks=pytest.mark.slow) for factor in SELDOM)]
METHODS: list[Attribution] = [ca.Saliency(), ca.InputXGradient(), ca.IntegratedGradients(n_steps=64)]


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("asked", METHODS, ids=lambda asked: type(asked).__name__)
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("network", list(NETWORKS))
def test_a_gradient_wrong_by_a_factor(
    network: str, factor: float, asked: Attribution, dtype: torch.dtype, mode: CheckMode
) -> None:
    """One percent is enough to be found out; the right gradient of the same function, without ``jvp``, agrees."""
    got = explained(network, factor, asked, dtype, mode)
    if factor == 1.0:
        assert verdict(got) is Verdict.AGREES, got.checks
    else:
        assert verdict(got) is not Verdict.AGREES
        assert got.checks[0].cause is Cause.WRONG_BACKWARD, got.checks
        assert "Changed" in got.checks[0].reason
