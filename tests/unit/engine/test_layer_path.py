"""One tensor of a layer that returns several is explained: as if the layer returned it alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest
from cutaway.contract.results import AttributionResult, Verdict
from cutaway.engine.batching import inspect_batch
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.planning.plan import plan_request
from tests.support.checked_attributions import CHECKED, Wired, ask, noise, verdict
from tests.support.reply_equality import differences


class Parts(nn.Module):
    """Returns a dict with a tensor, and None."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor | None]:
        """Returns the hidden values by name."""
        return {"none": None, "hidden": self.linear(x)}


def network(
    of_layer: Callable[[Any, Tensor], Any], take: Callable[[Any], Tensor], part: Callable[[], nn.Module]
) -> Any:
    """A network that goes on with one tensor of what its layer ``a`` returns, which ``pick`` returns alone."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        return Wired(
            lambda m, x: m.b(m.act(m.pick(take(of_layer(m, x))))).flatten(1)[:, :3],
            a=part(), pick=nn.Identity(), act=nn.Tanh(), b=nn.Linear(4, 3),
        ).double().eval()  # fmt: skip

    return build


def attending(**options: bool) -> Callable[[Any, Tensor], Any]:
    """A call of attention to itself."""
    return lambda m, x: m.a(x, x, x, **options)


NETWORKS = {
    "the sequence of an LSTM": (
        "[0]", network(lambda m, x: m.a(x), lambda out: out[0], lambda: nn.LSTM(4, 4, batch_first=True))),
    "the last state of an LSTM": (
        "[1][0]", network(lambda m, x: m.a(x), lambda out: out[1][0].transpose(0, 1),
                          lambda: nn.LSTM(4, 4, batch_first=True))),
    "the sequence of a GRU, time first": (
        "[0]", network(lambda m, x: m.a(x.transpose(0, 1)), lambda out: out[0].transpose(0, 1), lambda: nn.GRU(4, 4))),
    "attention": (
        "[0]", network(attending(), lambda out: out[0], lambda: nn.MultiheadAttention(4, 2, batch_first=True))),
    "attention without weights": (
        "[0]", network(attending(need_weights=False), lambda out: out[0],
                       lambda: nn.MultiheadAttention(4, 2, batch_first=True))),
    "a dict": ('["hidden"]', network(lambda m, x: m.a(x), lambda out: out["hidden"], Parts)),
}  # fmt: skip
ROWS_ELSEWHERE = ("the last state of an LSTM", "the sequence of a GRU, time first")
X = {"x": noise(3, 5, 4, dtype=torch.float64)}
SAMPLES = {"x": noise(4, 5, 4, dtype=torch.float64, seed=2).numpy()}
METHODS: list[Attribution] = [
    *(kind(layer="a") for kind in (ca.LayerActivation, ca.LayerGradientXActivation, ca.LayerFeatureAblation)),
    *(kind(layer="a", n_steps=8) for kind in (ca.LayerIntegratedGradients, ca.LayerConductance, ca.InternalInfluence)),
    ca.LayerGradientShap(layer="a", baselines=SAMPLES, n_samples=4),
    *(kind(layer="a") for kind in (ca.LayerGradCam, ca.LayerDeepLift)),
]


def explained(model: nn.Module, asked: Attribution, mode: CheckMode) -> AttributionResult:
    """Explains class 1."""
    request = {"target": ca.ClassIndex((1,)), "check": CheckRequest(mode), "seed": 3}
    return ask(model, X, asked, **request).attributions[0]


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("asked", METHODS, ids=lambda asked: type(asked).__name__)
@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_explained_as_a_module_that_returns_it_alone(name: str, asked: Attribution, mode: CheckMode) -> None:
    """Values, sums and verdict; the values have the tensor's own axes, and its path in their name."""
    path, build = NETWORKS[name]
    if isinstance(asked, ca.LayerDeepLift) and name in ROWS_ELSEWHERE:
        with pytest.raises(ca.InvalidArgument, match="is not the batch"):
            explained(build(), replace(asked, layer_path=path), mode)
        return
    ours = explained(build(), replace(asked, layer_path=path), mode)
    alone = explained(build(), replace(asked, layer="pick"), mode)  # type: ignore[call-arg]
    (own, values), (expected,) = *ours.values.items(), alone.values.values()
    assert own == f"a{path}"
    assert verdict(ours) is verdict(alone) is Verdict.AGREES
    if isinstance(asked, ca.LayerGradCam) and "state" in name:
        return  # the module behind it has other channels
    rows_first = values if values.shape == expected.shape else values.swapaxes(0, 1)
    assert not [*differences(rows_first, expected, 1e-9)]
    assert not [*differences(ours.convergence_delta, alone.convergence_delta, 1e-9)]


@pytest.mark.parametrize(
    ("asked", "reason", "words"),
    [
        (ca.LayerActivation(layer="a", layer_path="[2]"), "PATH_NOT_FOUND", r"there is '\[0\]', '\[1\]\[0\]'"),
        (ca.LayerActivation(layer="b", layer_path="[0]"), "PATH_NOT_FOUND", r"tensor at '\[0\]' of the output of 'b'"),
        (ca.Saliency(layer_path="[0]"), "INVALID_VALUE", "this method explains none"),
        (ca.LayerLRP(layer="b", layer_path="[0]"), "INVALID_VALUE", "this method explains none"),
        (
            ca.LayerIntegratedGradients(layer="a", further_layers=("b",), layer_path="[0]"),
            "INVALID_VALUE",
            "a tensor of what one layer returns",
        ),
    ],
)  # fmt: skip
def test_a_path_that_names_nothing_is_refused(asked: Attribution, reason: str, words: str) -> None:
    """With the field, and the paths that there are."""
    with pytest.raises(ca.InvalidArgument, match=words) as refused:
        explained(NETWORKS["the sequence of an LSTM"][1](), asked, CheckMode.OFF)
    assert refused.value.reason == reason
    assert refused.value.field == "attributions[0].layer_path"


def test_without_a_path_the_error_says_that_there_is_one() -> None:
    """Captum reads no tuple inside of another: the refusal names the field that helps, and what to put there."""
    with pytest.raises(
        ca.InvalidArgument, match=r"or one of its tensors by layer_path, of \[0\], \[1\]\[0\], \[1\]\[1\]$"
    ):
        explained(NETWORKS["the sequence of an LSTM"][1](), ca.LayerActivation(layer="a"), CheckMode.OFF)


def test_a_dry_run_has_the_same_names_and_shapes() -> None:
    """As the answer that it announces."""
    for path, build in NETWORKS.values():
        shapes = []
        for dry_run in (True, False):
            attribution = ca.LayerActivation(layer="a", layer_path=path)
            answer = ask(build(), X, attribution, target=ca.ClassIndex((1,)), dry_run=dry_run)
            shapes.append({name: array.shape for name, array in answer.attributions[0].values.items()})
        assert shapes[0] == shapes[1]


def test_requests_in_company_get_what_they_get_alone() -> None:
    """Two callers, one path each, and edits of the same layer: each has its own tensor."""
    _, build = NETWORKS["the sequence of an LSTM"]
    model = build()
    subject = InspectedModel(model, lambda tensors: model(**tensors))
    requests = [
        ca.InspectRequest("m", target=ca.ClassIndex((1,)), attributions=(attribution,), edits=edits)
        for attribution in (
            ca.LayerGradientXActivation(layer="a", layer_path="[0]"),
            ca.LayerActivation(layer="a", layer_path="[1][0]"),
        )
        for edits in ((), (ca.Scale("a", factor=0.5, path="[0]"),))
    ]
    together = inspect_batch([plan_request(subject, request, X) for request in requests])
    alone = [inspect(subject, request, X) for request in requests]
    assert not [*differences(together, alone, 1e-9)]
