"""An attribution that cannot be computed, in its place in the result, when the request takes it there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.errors import Code, Reason, error
from cutaway.contract.results import Verdict
from cutaway.engine.planning.plan import in_place
from cutaway.gateway import serve
from cutaway.server.settings import Settings
from tests.support.checked_attributions import noise

X = {"x": noise(2, 3).numpy()}


class Net(nn.Module):
    """Three classes; one module is never called, one returns integers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.idle = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.fc(x))


BAD: tuple[tuple[ca.Attribution, str, str], ...] = (
    (ca.LayerGradCam(layer="nowhere"), "MODULE_NOT_FOUND", "layer_grad_cam.layer"),  # before anything runs
    (ca.LayerActivation(layer="idle"), "METHOD_INAPPLICABLE", "layer_activation.layer"),  # after the main pass
    (ca.Saliency(target=ca.ClassIndex((7,))), "TARGET_RANGE", "target.class_index"),
    (ca.LRP(target=ca.OutputSum()), "METHOD_INAPPLICABLE", ""),  # where Captum is about to run
)


def ask(*asked: ca.Attribution, **more: Any) -> ca.InspectResult:
    with serve({"m": Net()}) as server, ca.Client(server.address) as client:
        return client.inspect("m", X, attributions=asked, **more)


@pytest.mark.parametrize(
    ("bad", "reason", "field", "dry_run"),
    [
        pytest.param(*each, dry_run, id=f"{type(each[0]).__name__}{'-dry' * dry_run}")
        for dry_run in (False, True)
        for each in BAD
        if not (dry_run and isinstance(each[0], ca.LRP))  # a dry run does not run Captum
    ],
)
def test_the_others_are_as_without_it(bad: ca.Attribution, reason: str, field: str, dry_run: bool) -> None:
    """Whatever stage finds the error; it names its place in the request, not in what is left."""
    good: tuple[ca.Attribution, ...] = (ca.Saliency(), ca.IntegratedGradients(n_steps=4))
    first, failed, last = (
        ask(good[0], bad, good[1], attribution_errors_in_place=True, dry_run=dry_run).attributions
        if not dry_run
        else _dry(good[0], bad, good[1])
    )
    assert failed.error is not None
    assert failed.error.reason == reason
    assert failed.error.field == "attributions[1]" + (f".{field}" if field else "")
    assert failed.method == type(bad).__name__
    assert failed.values == {}
    assert first.error is None
    assert last.error is None
    if not dry_run:
        alone = ask(*good).attributions
        for each, other in zip((first, last), alone):
            np.testing.assert_array_equal(each.values["x"], other.values["x"])
            assert [check.verdict for check in each.checks] == [Verdict.AGREES] * len(other.checks)


def _dry(*asked: ca.Attribution) -> tuple[ca.AttributionResult, ...]:
    """What the engine estimates: the reply of a dry run itself has no attributions."""
    from cutaway.engine.cost.estimate import estimate
    from cutaway.engine.model.inspected_model import InspectedModel
    from cutaway.engine.planning.plan import plan_request

    model = Net()
    subject = InspectedModel(model, lambda tensors: model(**tensors))
    request = ca.InspectRequest("m", attributions=asked, attribution_errors_in_place=True, dry_run=True)
    return estimate(plan_request(subject, request, {"x": torch.from_numpy(X["x"])})).attributions


LIMITS = Settings(max_steps=16, max_passes=1600)

OF_VALUES: tuple[tuple[ca.Attribution, str, str], ...] = (
    (ca.IntegratedGradients(n_steps=17), "LIMIT_EXCEEDED", "integrated_gradients.n_steps"),
    (ca.GradientShap(baselines=X, n_samples=17), "LIMIT_EXCEEDED", "gradient_shap.n_samples"),
    (ca.IntegratedGradients(n_steps=16, noise=ca.NoiseTunnel(n_samples=100)), "LIMIT_EXCEEDED",
     "integrated_gradients"),
    (ca.IntegratedGradients(max_delta=-1.0), "INVALID_VALUE", "integrated_gradients.path.max_delta"),
    (ca.LayerConductance(layer="fc", max_delta=-1.0), "INVALID_VALUE", "layer_conductance.path.max_delta"),
    (ca.GradientShap(baselines=X, stdev=-1.0), "INVALID_VALUE", "gradient_shap.stdev"),
    (ca.Saliency(metrics=(ca.SensitivityMax(radius=-1.0),)), "INVALID_VALUE",
     "metrics[0].sensitivity_max.radius"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "reason", "field"), OF_VALUES, ids=[f"{type(each[0]).__name__}-{each[2]}" for each in OF_VALUES]
)
def test_limits_and_values_of_one_cost_the_others_nothing(bad: ca.Attribution, reason: str, field: str) -> None:
    """Whether a message cannot hold the value, or the operator does not allow it; those behind it keep their numbers,
    and one alone fails the call as ever."""
    nowhere = ca.LayerGradCam(layer="nowhere")
    with serve({"m": Net()}, settings=LIMITS) as server, ca.Client(server.address) as client:
        found = client.inspect(
            "m",
            X,
            attributions=[bad, ca.Saliency(), nowhere, bad, ca.InputXGradient()],
            attribution_errors_in_place=True,
        ).attributions
        with pytest.raises(ca.CutawayError) as caught:
            client.inspect("m", X, attributions=[ca.Saliency(), bad])
    assert [each.method for each in found[::3]] == [type(bad).__name__] * 2
    assert found[0].layer == found[3].layer == getattr(bad, "layer", "")
    assert [(each.error.reason, each.error.field) if each.error else each.verdict for each in found] == [
        (reason, f"attributions[0].{field}"), Verdict.AGREES,
        ("MODULE_NOT_FOUND", "attributions[2].layer_grad_cam.layer"),
        (reason, f"attributions[3].{field}"), Verdict.AGREES,
    ]  # fmt: skip
    assert (caught.value.reason, caught.value.field) == (reason, f"attributions[1].{field}")


def test_more_attributions_than_allowed_fail_the_call() -> None:
    """Also where some of them hold what is not allowed."""
    many = [ca.IntegratedGradients(max_delta=-1.0)] * 2 + [ca.Saliency()]
    with (
        serve({"m": Net()}, settings=Settings(max_attributions=2)) as server,
        ca.Client(server.address) as client,
        pytest.raises(ca.ResourceExhausted, match="3 attributions, 2 are allowed"),
    ):
        client.inspect("m", X, attributions=many, attribution_errors_in_place=True)


@pytest.mark.parametrize("reason", Reason, ids=str)
def test_which_reasons_stay_in_their_place(reason: Reason) -> None:
    """All that the caller, the model or a limit is the reason of; not that the server failed, or nobody waits."""
    request = ca.InspectRequest("m", attributions=(ca.Saliency(),), attribution_errors_in_place=True)
    of_the_call = {Code.DEADLINE_EXCEEDED, Code.INTERNAL, Code.UNAVAILABLE, Code.UNIMPLEMENTED, Code.NOT_FOUND}
    of_the_call |= {Code.PERMISSION_DENIED, Code.UNAUTHENTICATED}
    fails = {Reason.REPLY_TOO_LARGE, Reason.REQUEST_TOO_LARGE, Reason.OVERLOADED}
    if reason in fails or reason.code in of_the_call:
        with pytest.raises(ca.CutawayError):
            in_place(request, ca.Saliency(), error(reason, "why"))
    else:
        failed = in_place(request, ca.Saliency(), error(reason, "why", "where")).error
        assert failed is not None
        assert (failed.code, failed.reason, failed.field) == (reason.code, reason, "where")


def test_without_the_wish_the_call_fails() -> None:
    with pytest.raises(ca.InvalidArgument) as caught:
        ask(ca.Saliency(), BAD[0][0])
    assert caught.value.field == "attributions[1].layer_grad_cam.layer"


def test_of_several_each_has_its_own() -> None:
    """And classes of a top-k target keep their order around them."""
    found = ask(
        ca.Saliency(target=ca.TopK(2)), *(bad for bad, *_ in BAD), ca.InputXGradient(), attribution_errors_in_place=True
    ).attributions
    assert [each.error.reason if each.error else each.method for each in found] == [
        "Saliency", "Saliency", *(reason for _, reason, _ in BAD), "InputXGradient",
    ]  # fmt: skip


def test_an_error_that_is_no_attributions_fails_the_call() -> None:
    with pytest.raises(ca.InvalidArgument, match="no output"):
        ask(ca.Saliency(), target=ca.ClassIndex((0,), output="none"), captures=["fc"], attribution_errors_in_place=True)
