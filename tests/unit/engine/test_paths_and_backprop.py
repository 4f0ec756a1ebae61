"""Methods that walk a path at a layer, and methods that override rectifiers: the answer is Captum's own, and a verdict
on it can be believed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest, Quadrature
from cutaway.contract.results import AttributionResult, Verdict
from tests.support.checked_attributions import Build, ask
from tests.support.path_models import MODULES, given

STEPS = 6


PATHS: tuple[Attribution, ...] = (
    ca.LayerConductance(layer="b", n_steps=STEPS),
    ca.LayerConductance(layer="b", n_steps=STEPS, quadrature=Quadrature.RIEMANN_MIDDLE, baselines={"x": 0.5}),
    ca.InternalInfluence(layer="b", n_steps=STEPS),
    ca.InternalInfluence(layer="b", n_steps=STEPS, quadrature=Quadrature.RIEMANN_LEFT, baselines={"x": 0.5}),
    ca.LayerIntegratedGradients(layer="b", n_steps=STEPS),
    ca.LayerIntegratedGradients(layer="b", n_steps=STEPS, quadrature=Quadrature.RIEMANN_RIGHT, baselines={"x": 0.5}),
)


def explained(build: Build, asked: Attribution, mode: CheckMode, rows: int = 4, **more: Any) -> AttributionResult:
    inputs = given(build, rows, more.pop("dtype", torch.float32))
    return ask(build(), inputs, asked, check=CheckRequest(mode), **more).attributions[0]


# Captum gone wrong.


# What Captum overlooks.


# Completeness.


def test_what_flows_through_the_layer_adds_up() -> None:
    """All of the target's change flows through the layer: with steps enough its attributions add up to it."""
    for asked in (PATHS[0], PATHS[4]):
        result = explained(MODULES, replace(asked, n_steps=200), CheckMode.SAME_PASS)  # type: ignore[call-arg]
        assert [check.verdict for check in result.checks] == [Verdict.AGREES] * 2
        assert result.convergence_delta is not None
        assert result.value_at_input is not None
        assert result.value_at_baseline is not None
        change = result.value_at_input - result.value_at_baseline
        summed = result.values["b"].reshape(4, -1).sum(1)
        assert np.allclose(summed - change, result.convergence_delta, atol=1e-6)
