"""Arguments of forward that are no tensors: the model gets them in every pass, and nothing is shared across them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import Argument, CheckMode, CheckRequest
from cutaway.contract.results import InspectResult, Verdict
from cutaway.engine.batching import inspect_batch
from cutaway.engine.cost.pass_count import costs
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.planning.plan import plan_request
from cutaway.gateway import serve
from tests.support.checked_attributions import noise, wired

X = {"x": noise(2, 3)}


class Scaled(nn.Module):
    """Three classes, times a number, in a mode that a text names; keeps what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(3, 3)
        self.seen: list[tuple[Any, ...]] = []

    def forward(self, x: Tensor, scale: float = 1.0, mode: str = "tanh", mask: Tensor | None = None) -> Tensor:
        self.seen.append((scale, mode, mask))
        h = self.fc(x) if mask is None else self.fc(x) * mask
        return (torch.tanh(h) if mode == "tanh" else h) * scale


class Detaching(Scaled):
    """Its backward pass is wrong in one mode only."""

    def forward(self, x: Tensor, scale: float = 1.0, mode: str = "tanh", mask: Tensor | None = None) -> Tensor:
        good = super().forward(x, scale, mode, mask)
        return good + (good.detach() if mode == "wrong" else 0)


def subject(model: nn.Module) -> InspectedModel:
    return InspectedModel(model, lambda tensors: model(**tensors))


def ask(
    model: InspectedModel, *asked: ca.Attribution, check: CheckMode = CheckMode.SAME_PASS, **arguments: Argument
) -> InspectResult:
    request = ca.InspectRequest("m", arguments=arguments, attributions=asked, check=CheckRequest(check))
    return inspect(model, request, dict(X))


@pytest.mark.parametrize("mode", [CheckMode.SAME_PASS, CheckMode.INDEPENDENT])
def test_every_pass_gets_them(mode: CheckMode) -> None:
    """Of predictions, Captum, references and checks."""
    model = Scaled()
    asked = (ca.IntegratedGradients(n_steps=4), ca.FeatureAblation(), ca.LayerGradCam(layer="fc"))
    result = ask(subject(model), *asked, check=mode, scale=2.5, mask=None)
    assert set(model.seen) == {(2.5, "tanh", None)}
    assert {check.verdict for each in result.attributions for check in each.checks} == {Verdict.AGREES}
    torch.testing.assert_close(torch.from_numpy(result.predictions["output"]), 2.5 * torch.tanh(model.fc(X["x"])))


def test_the_next_request_does_not_get_them() -> None:
    model = Scaled()
    server = subject(model)
    ask(server, scale=3.0)
    ask(server)
    assert model.seen[-1] == (1.0, "tanh", None)


@pytest.mark.parametrize("order", [("tanh", "wrong"), ("wrong", "tanh")])
def test_a_doubt_is_remembered_for_the_arguments_that_raise_it(order: tuple[str, str]) -> None:
    server = subject(Detaching())
    verdicts = {mode: ask(server, ca.Saliency(), mode=mode).attributions[0].checks[0].verdict for mode in order}
    assert verdicts == {"tanh": Verdict.AGREES, "wrong": Verdict.INCONCLUSIVE}


def test_requests_share_passes_with_those_of_the_same_arguments() -> None:
    """True and 1 are not the same."""
    model = Scaled()
    server = subject(model)
    scales = (2, 2, 3, True, 2)
    plans = [plan_request(server, ca.InspectRequest("m", arguments={"scale": scale}), dict(X)) for scale in scales]
    inspect_batch(plans)  # finds out that rows are independent
    model.seen.clear()
    results = inspect_batch(plans)
    assert sorted(map(repr, [scale for scale, *_ in model.seen])) == ["2", "3", "True"]
    for scale, result in zip(scales, results):
        assert isinstance(result, InspectResult)
        expected = (torch.tanh(model.fc(X["x"])) * scale).detach().numpy()
        np.testing.assert_array_equal(result.predictions["output"], expected)


def test_they_travel() -> None:
    """Every kind, and numpy's."""
    model = Scaled()
    with serve({"m": model}) as server, ca.Client(server.address) as client:
        for value in (2, 2.5, True, np.float64(0.5), np.int64(4)):
            model.seen.clear()
            client.inspect("m", {"x": np.ones((1, 3), np.float32)}, arguments={"scale": value, "mode": "plain"})
            (scale, mode, _), *_ = model.seen
            assert (scale, type(scale), mode) == (
                value,
                type(getattr(value, "item", lambda value=value: value)()),
                "plain",
            )


@pytest.mark.parametrize(
    ("arguments", "reason", "field", "words"),
    [
        ({"scal": 2}, "INPUT_UNKNOWN", "arguments.scal", "did you mean 'scale'"),
        ({"x": 2}, "INVALID_VALUE", "arguments.x", "a tensor is sent for it too"),
        ({"scale": [1, 2]}, "INVALID_VALUE", "arguments.scale", "an array is an input"),
        ({"scale": 2**70}, "INVALID_VALUE", "arguments.scale", "from -9223372036854775808"),
        ({"mode": 3, "scale": "a"}, "MODEL_FAILED", "", "scale='a'"),
    ],
)
def test_what_is_no_argument_is_refused(arguments: dict[str, Any], reason: str, field: str, words: str) -> None:
    with serve({"m": Scaled()}) as server, ca.Client(server.address) as client:
        with pytest.raises(ca.InvalidArgument, match=words) as caught:
            client.inspect("m", {"x": np.ones((1, 3), np.float32)}, arguments=arguments)
        assert (caught.value.reason, caught.value.field) == (reason, field)


def test_an_argument_in_the_place_of_an_input_that_is_needed() -> None:
    """It is then not missing; a number as a tensor is told where it belongs."""
    with (
        serve({"m": Scaled()}) as server,
        ca.Client(server.address) as client,
        pytest.raises(ca.InvalidArgument, match="goes into arguments"),
    ):
        client.inspect("m", {"x": np.ones((1, 3), np.float32), "scale": 2})


def test_the_passes_that_are_counted_beforehand_get_them() -> None:
    """A layer's units are counted in a pass, which must not fail for want of an argument: then the limit would not
    hold."""
    model = wired(lambda m, x, scale: torch.tanh(m.fc(x)) * scale, fc=lambda: nn.Linear(3, 3))()
    asked = ca.LayerFeatureAblation(layer="fc")
    plan = plan_request(
        subject(model), ca.InspectRequest("m", arguments={"scale": 2.0}, attributions=(asked,)), dict(X)
    )
    ((_, passes),) = costs(plan)
    assert passes >= 3 * len(X["x"])
