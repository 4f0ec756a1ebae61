"""Integrated gradients of several layers that go from their values at the baseline to those at the input together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from captum import attr
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import CheckMode, CheckRequest
from cutaway.contract.results import Verdict
from tests.support.broken_captum import spoiled
from tests.support.checked_attributions import CHECKED, ask, noise, verdict, wired

INPUTS = {"x": noise(3, 4), "y": noise(3, 4, seed=2)}
STARTS = {"x": np.full((1, 4), 0.5, np.float32), "y": np.full((1, 4), -0.25, np.float32)}
TOGETHER = ca.LayerIntegratedGradients(layer="a", further_layers=("b",), n_steps=20, baselines=STARTS)


class Pair(nn.Module):
    """Two tensors, once each call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.linear(x)
        return h, h**2


def once() -> nn.Module:
    """The network, with its layers called once."""
    model: Any = wired(
        lambda m, x, y: _mixed(m, x, m.b(y)),
        a=lambda: nn.Linear(4, 6), b=Pair, head=lambda: nn.Linear(6, 3),
    )()  # fmt: skip
    return model


def _mixed(m: Any, x: Tensor, pair: tuple[Tensor, Tensor]) -> Tensor:
    out: Tensor = m.head(torch.tanh(m.a(x)) * torch.sigmoid(pair[0] - pair[1]))
    return out


@pytest.mark.parametrize("mode", CHECKED)
def test_it_is_captums_and_agrees(mode: CheckMode) -> None:
    """And not that of each layer by itself; the attributions of all layers together sum to the target's change."""
    model: Any = once()
    target = ca.ClassIndex((1,))
    (got,) = ask(model, INPUTS, TOGETHER, target=target, check=CheckRequest(mode)).attributions
    starts = tuple(torch.from_numpy(STARTS[name]) for name in INPUTS)
    theirs = attr.LayerIntegratedGradients(model, [model.a, model.b]).attribute(
        tuple(INPUTS.values()), baselines=starts, target=1, n_steps=20
    )
    assert list(got.values) == ["a", "b[0]", "b[1]"]
    for ours, their in zip(got.values.values(), [theirs[0], *theirs[1]]):
        np.testing.assert_allclose(ours, their.detach().numpy(), rtol=1e-5, atol=1e-7)
    assert [check.verdict for check in got.checks] == [Verdict.AGREES] * 2, got.checks
    alone = ca.LayerIntegratedGradients(layer="a", n_steps=20, baselines=STARTS)
    (single,) = ask(model, INPUTS, alone, target=target).attributions
    assert not np.allclose(single.values["a"], got.values["a"], rtol=1e-2)


@pytest.mark.parametrize("mode", CHECKED)
def test_a_wrong_answer_at_the_second_layer_is_found(mode: CheckMode) -> None:
    def change(values: Any) -> Any:
        return [values[0], (values[1][0], values[1][1] * 1.05)]

    with spoiled(ca.LayerIntegratedGradients, values=change):
        (got,) = ask(once(), INPUTS, TOGETHER, check=CheckRequest(mode)).attributions
    assert verdict(got) is Verdict.DISAGREES


@pytest.mark.parametrize(
    ("further", "reason", "field"),
    [
        (("nowhere",), "MODULE_NOT_FOUND", "further_layers[0]"),
        (("b", "a"), "INVALID_VALUE", "further_layers[1]"),
        (("idle",), "METHOD_INAPPLICABLE", "further_layers[0]"),
    ],
)
def test_what_is_no_further_layer_is_refused(further: tuple[str, ...], reason: str, field: str) -> None:
    model = once()
    model.add_module("idle", nn.Identity())
    with pytest.raises(ca.InvalidArgument) as refused:
        ask(model, INPUTS, ca.LayerIntegratedGradients(layer="a", further_layers=further))
    assert refused.value.reason == reason
    assert refused.value.field == f"attributions[0].layer_integrated_gradients.{field}"
