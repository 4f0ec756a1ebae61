"""Passes of our own run in batches of the size of Captum's, near kinks the only ones that round as its do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import CheckMode, CheckRequest
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from tests.support.checked_attributions import noise

SAMPLES = {"x": np.zeros((3, 8), np.float32)}
NEURON = ca.Neuron("a", (1,))


class Logging(nn.Module):
    """Notes how many rows it is given that are to be differentiated."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(8, 4), nn.Linear(4, 3)
        self.rows: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.rows.append(len(x))
        return self.b(torch.tanh(self.a(x)))


ASKED: dict[str, tuple[ca.Attribution, int]] = {
    "integrated gradients": (ca.IntegratedGradients(n_steps=50), 1),
    "internal influence": (ca.InternalInfluence(layer="a", n_steps=50), 1),
    "conductance": (ca.LayerConductance(layer="a", n_steps=50), 1),
    "integrated gradients at a layer": (ca.LayerIntegratedGradients(layer="a", n_steps=50), 1),
    "integrated gradients of a neuron": (ca.NeuronIntegratedGradients(neuron=NEURON, n_steps=50), 1),
    "conductance of a neuron": (ca.NeuronConductance(neuron=NEURON, n_steps=50), 2),
    "expected gradients": (ca.GradientShap(baselines=SAMPLES, n_samples=4), 1),
    "noise around a path": (ca.IntegratedGradients(n_steps=50, noise=ca.NoiseTunnel(n_samples=2, stdev=0.1)), 1),
    "a gradient": (ca.Saliency(), 1),
}
"""What is asked, and how many passes of our own a pass of Captum's takes."""


@pytest.mark.parametrize("name", list(ASKED))
def test_own_passes_have_the_rows_of_captums(name: str) -> None:
    """An independent check differentiates batch by batch what Captum differentiates, and no batch of another size."""
    asked, times = ASKED[name]

    def sizes(mode: CheckMode) -> list[int]:
        model = Logging()
        subject = InspectedModel(model, lambda tensors: model(**tensors))
        request = ca.InspectRequest("m", attributions=(asked,), check=CheckRequest(mode), seed=3)
        inspect(subject, request, {"x": noise(3, 8)})  # what checks must know of the model is found out once
        model.rows.clear()
        inspect(subject, request, {"x": noise(3, 8)})
        return model.rows

    captums = sizes(CheckMode.OFF)
    assert captums
    assert sorted(sizes(CheckMode.INDEPENDENT)) == sorted(captums * (1 + times))
