"""What Captum cannot do for a model: refused in clear words, or answered for each request alone."""

from __future__ import annotations

from collections.abc import Callable
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
from tests.support.checked_attributions import noise, wired
from tests.support.function_module import Through
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


class Attention(nn.Module):
    """Returns what `nn.MultiheadAttention` does without weights: a tensor and None."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        """Attends to all steps."""
        return self.attention(x, x, x, need_weights=False)


class Listed(nn.Module):
    """Returns a list, which its caller adds another one to."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Returns one tensor in a list."""
        return [self.linear(x)]


UNREADABLE: dict[str, Callable[[], nn.Module]] = {
    "a tensor and None": wired(lambda m, x: m.b(m.a(x)[0].tanh().mean(1)), a=Attention, b=lambda: nn.Linear(4, 2)),
    "in a list": wired(lambda m, x: m.b([*m.a(x), x][0].tanh().mean(1)), a=Listed, b=lambda: nn.Linear(4, 2)),
    "inside vmap": wired(
        lambda m, x: m.b(torch.func.vmap(m.a)(x).tanh().mean(1)), a=lambda: nn.Linear(4, 4), b=lambda: nn.Linear(4, 2)
    ),
    "nested": wired(
        lambda m, x: m.b(m.a([*x]).to_padded_tensor(0.0).tanh().mean(1)),
        a=lambda: Through(lambda rows: torch.nested.as_nested_tensor(rows, layout=torch.jagged) * 2.0),
        b=lambda: nn.Linear(4, 2),
    ),
}
NEURON, SAMPLES = ca.Neuron("a", (0, 1)), {"x": noise(3, 5, 4, seed=4).numpy()}
AT_A_MODULE: list[Attribution] = [
    *(kind(layer="a") for kind in (ca.LayerActivation, ca.LayerGradientXActivation, ca.LayerGradCam, ca.LayerDeepLift)),
    *(kind(layer="a", n_steps=4) for kind in (ca.InternalInfluence, ca.LayerConductance, ca.LayerIntegratedGradients)),
    *(kind(layer="a", baselines=SAMPLES) for kind in (ca.LayerGradientShap, ca.LayerDeepLiftShap)),
    *(kind(layer="a") for kind in (ca.LayerFeatureAblation, ca.LayerFeaturePermutation)),
    *(kind(neuron=NEURON) for kind in (ca.NeuronGradient, ca.NeuronConductance, ca.NeuronDeepLift)),
    *(kind(neuron=NEURON) for kind in (ca.NeuronGuidedBackprop, ca.NeuronFeatureAblation)),
]


@pytest.mark.parametrize("asked", AT_A_MODULE, ids=lambda asked: type(asked).__name__)
@pytest.mark.parametrize("name", UNREADABLE)
def test_what_captum_cannot_read_is_no_failure_of_the_model(name: str, asked: Attribution) -> None:
    """The model runs without Captum: an answer, or the module's field with what it returns; and no word of sizes."""
    model, inputs = UNREADABLE[name]().eval(), {"x": noise(3, 5, 4)}
    model(**inputs)
    try:
        inspect(subject(model), question(asked), inputs)
    except ca.InvalidArgument as refused:
        told = (str(refused.reason), refused.message)
    else:
        told = ("METHOD_INAPPLICABLE", "'a' answered")
    assert told[0] in ("METHOD_INAPPLICABLE", "POINT_NOT_FOUND", "NOT_DIFFERENTIABLE")
    assert "'a'" in told[1]
    assert "other batches" not in told[1]
