"""Tables with categories: codes that an embedding takes, beside numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import Attribution
from cutaway.contract.results import Cause, Verdict
from tests.support.checked_attributions import CHECKED, ask, noise, verdict


class Table(nn.Module):
    """One column of categories and four of numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(15)
        self.emb, self.a, self.act, self.b = nn.Embedding(6, 3), nn.Linear(7, 8), nn.Tanh(), nn.Linear(8, 2)

    def forward(self, codes: Tensor, numbers: Tensor) -> Tensor:
        """Returns two scores."""
        y: Tensor = self.b(self.act(self.a(torch.cat([self.emb(codes[:, 0]), numbers], 1))))
        return y


INPUTS = {"codes": torch.tensor([[1], [3]]), "numbers": noise(2, 4)}
UNMOVED: list[Attribution] = [
    ca.LayerIntegratedGradients(layer="emb", n_steps=8),
    ca.LayerConductance(layer="emb", n_steps=8),
    ca.LayerDeepLift(layer="emb"),
    ca.LayerGradientShap(layer="emb", baselines={"numbers": np.zeros((2, 4), np.float32)}),
]


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("asked", UNMOVED, ids=lambda asked: type(asked).__name__)
def test_zeros_of_a_layer_that_nothing_moved_are_doubted(asked: Attribution, mode: ca.CheckMode) -> None:
    """By default the numbers are explained, which do not reach the embedding: its zeros prove nothing."""
    result = ask(Table().eval(), INPUTS, asked, target=ca.ClassIndex((1,)), check=ca.CheckRequest(mode)).attributions[0]
    assert verdict(result) is Verdict.INCONCLUSIVE
    assert result.checks[0].cause is Cause.NOTHING_CHANGED
    assert "such as 'codes'" in result.checks[0].reason


@pytest.mark.parametrize(
    "asked",
    [
        ca.LayerIntegratedGradients(layer="emb", inputs=("codes", "numbers"), n_steps=8),
        ca.LayerConductance(layer="a", n_steps=8),
        ca.InternalInfluence(layer="emb", n_steps=8),
    ],
    ids=lambda asked: type(asked).__name__,
)
def test_a_layer_that_is_reached_is_not_doubted(asked: Attribution) -> None:
    """Where the codes are named, or the layer is behind the numbers, or nothing is multiplied by the change."""
    result = ask(Table().eval(), INPUTS, asked, target=ca.ClassIndex((1,)))
    assert verdict(result.attributions[0]) is Verdict.AGREES, result.attributions[0].checks
