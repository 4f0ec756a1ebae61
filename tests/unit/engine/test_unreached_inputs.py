"""An input among several that the target does not depend on: its attribution is zero, and the others are explained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import Attribution
from cutaway.contract.results import Verdict
from tests.support.checked_attributions import CHECKED, ask, noise


class Two(nn.Module):
    """Two networks side by side, each with an input and an output of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), nn.Linear(4, 2)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"logits": self.a(x), "other": self.b(y)}


INPUTS = {"x": noise(2, 4), "y": noise(2, 4, seed=2)}
SAMPLES = {name: np.zeros((2, 4), np.float32) for name in INPUTS}
METHODS: list[Attribution] = [
    *(ca.Saliency(), ca.InputXGradient(), ca.IntegratedGradients(n_steps=8), ca.DeepLift(), ca.GuidedBackprop()),
    *(ca.DeepLiftShap(baselines=SAMPLES), ca.GradientShap(baselines=SAMPLES), ca.Deconvolution(), ca.LRP()),
    *(ca.Saliency(noise=ca.NoiseTunnel(n_samples=3)), ca.Saliency(metrics=(ca.SensitivityMax(),))),
]
MORE: dict[str, Any] = {"target": ca.ClassIndex((1,)), "seed": 1}


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("asked", METHODS, ids=lambda asked: type(asked).__name__)
def test_an_input_without_an_effect_has_zeros_and_a_warning(asked: Any, mode: ca.CheckMode) -> None:
    """The other input has the values that it has alone, the check agrees, and the warning names the one."""
    got = ask(Two().eval(), INPUTS, asked, check=ca.CheckRequest(mode), **MORE)
    result = got.attributions[0]
    assert not np.any(result.values["y"])
    assert result.checks[0].verdict is Verdict.AGREES
    assert [(warning.code, warning.subject) for warning in got.warnings] == [(ca.WarningCode.NO_GRADIENT, "y")]
    if not (asked.noise or isinstance(asked, ca.GradientShap)):  # which draw for all inputs in turn
        explained = replace(asked, inputs=("x",))
        if isinstance(asked, ca.DeepLiftShap):
            explained = replace(explained, baselines={"x": SAMPLES["x"]})
        alone = ask(Two().eval(), INPUTS, explained, check=ca.CheckRequest(mode), **MORE).attributions[0]
        assert np.allclose(result.values["x"], alone.values["x"], atol=1e-6)


def test_only_inputs_without_an_effect_are_refused_by_their_names() -> None:
    with pytest.raises(ca.FailedPrecondition, match="does not depend on the input y through") as refused:
        ask(Two().eval(), INPUTS, ca.Saliency(inputs=("y",)), **MORE)
    assert refused.value.reason == "NOT_DIFFERENTIABLE"
