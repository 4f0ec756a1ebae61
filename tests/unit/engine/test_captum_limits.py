"""What Captum cannot do for a model: refused in clear words, or answered for each request alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest, InspectRequest
from cutaway.engine.batching import inspect_batch
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.planning.plan import plan_request
from tests.support.checked_attributions import wired
from tests.support.reply_equality import differences


def question(attribution: Attribution) -> InspectRequest:
    return InspectRequest(
        "m", attributions=(attribution,), check=CheckRequest(CheckMode.OFF), target=ca.ClassIndex((0,))
    )


def subject(model: nn.Module) -> InspectedModel:
    return InspectedModel(model, lambda tensors: model(**tensors), labels=("zero", "one"))


@pytest.mark.parametrize("kind", [ca.GuidedBackprop, ca.Deconvolution])
def test_a_rectifier_that_runs_in_company_only_changes_no_answer(kind: type[Attribution]) -> None:
    """A batch of several rows takes another way, with the same values and gradients: no request joins another."""

    def branching(m: Any, x: Tensor) -> Tensor:
        hidden = m.a(x)
        return m.b(m.r(hidden) if len(x) == 1 else torch.relu(hidden))

    build = wired(branching, a=lambda: nn.Linear(6, 8), r=nn.ReLU, b=lambda: nn.Linear(8, 2))
    asked = question(kind())
    inputs = [{"x": torch.randn(1, 6, generator=torch.Generator().manual_seed(seed)).double()} for seed in range(4)]
    model = subject(build().double())
    answers = inspect_batch([plan_request(model, asked, each) for each in inputs])
    alone = [inspect(subject(build().double()), asked, each) for each in inputs]
    assert not [*differences(answers, alone, 1e-9)]


@pytest.mark.parametrize(
    "attribution",
    [
        ca.LayerActivation(layer="a"),
        ca.LayerGradCam(layer="a"),
        ca.LayerGradientXActivation(layer="a"),
        ca.InternalInfluence(layer="a", n_steps=4),
        ca.LayerIntegratedGradients(layer="a", n_steps=4),
    ],
    ids=lambda attribution: type(attribution).__name__,
)
def test_a_layer_with_a_nested_output_is_refused_by_name(attribution: Attribution) -> None:
    """An LSTM returns a tuple inside of a tuple, which Captum cannot read: the layer's field is at fault."""
    build = wired(
        lambda m, x: m.b(m.a(x)[0][:, -1]), a=lambda: nn.LSTM(3, 4, batch_first=True), b=lambda: nn.Linear(4, 2)
    )
    with pytest.raises(ca.InvalidArgument, match="'a' returns something besides a tensor") as refused:
        inspect(subject(build()), question(attribution), {"x": torch.randn(2, 5, 3)})
    assert refused.value.reason == "METHOD_INAPPLICABLE"
    assert refused.value.field.endswith(".layer")
