"""What cannot be explained along a path or at rectifiers is refused with the field at fault."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest
from cutaway.contract.results import Verdict
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from tests.support.checked_attributions import IDS, ask, bert, verdict
from tests.support.path_models import MODULES, TWO_INPUTS, given

IMAGES = given(MODULES, 4, torch.float32)
EMBEDDINGS = "network.bert.embeddings"

BEFORE: dict[str, tuple[Attribution, str, str]] = {
    "no steps": (ca.LayerConductance(layer="b", n_steps=0), "INVALID_VALUE", "layer_conductance.path.n_steps"),
    "too many steps": (
        ca.InternalInfluence(layer="b", n_steps=5000), "INVALID_VALUE", "internal_influence.path.n_steps"),
    "one step between two ends": (
        ca.LayerIntegratedGradients(layer="b", n_steps=1, quadrature=ca.Quadrature.RIEMANN_LEFT),
        "INVALID_VALUE", "layer_integrated_gradients.path.n_steps"),
    "a layer that is not there": (ca.LayerConductance(layer="z"), "MODULE_NOT_FOUND", "layer_conductance.layer"),
    "Grad-CAM of a layer that is not there": (ca.GuidedGradCam(layer="z"), "MODULE_NOT_FOUND", "guided_grad_cam.layer"),
    "a baseline for nothing": (
        ca.LayerConductance(layer="b", baselines={"y": 1.0}), "INPUT_UNKNOWN",
        "layer_conductance.path.baselines.by_input.y"),
    "a baseline of another shape": (
        ca.InternalInfluence(layer="b", baselines={"x": np.zeros((1, 2), np.float32)}), "INPUT_SHAPE",
        "internal_influence.path.baselines.by_input.x"),
    "an input that was not sent": (ca.LayerIntegratedGradients(layer="b", inputs=("q",)), "INPUT_UNKNOWN", "inputs"),
}  # fmt: skip


def refused(model: Any, inputs: dict[str, Tensor], asked: Attribution, **more: Any) -> ca.CutawayError:
    with pytest.raises(ca.InvalidArgument) as failure:
        ask(model, inputs, asked, **more)
    return failure.value


@pytest.mark.parametrize("name", list(BEFORE))
def test_a_mistake_is_named_before_anything_runs(name: str) -> None:
    """The reason and the field say what is wrong, and the model has not run."""
    asked, reason, field = BEFORE[name]
    subject = InspectedModel(MODULES(), lambda _: pytest.fail("the model ran"))
    with pytest.raises(ca.InvalidArgument) as failure:
        inspect(subject, ca.InspectRequest("m", attributions=(asked,)), IMAGES)
    assert (failure.value.reason, failure.value.field) == (reason, f"attributions[0].{field}")


def test_whole_numbers_walk_no_path_but_have_ends() -> None:
    """Between token ids there is no path: only between what a layer makes of them, from ids as a baseline."""
    layer = ca.LayerConductance(layer=EMBEDDINGS)
    assert refused(bert(), IDS, layer).reason == "INPUT_NOT_DIFFERENTIABLE"
    broken = ca.LayerIntegratedGradients(layer=EMBEDDINGS, baselines={"input_ids": 0.5})
    assert refused(bert(), IDS, broken).reason == "INVALID_VALUE"
    padding = {"input_ids": np.full((1, 6), 3)}
    asked = ca.LayerIntegratedGradients(layer=EMBEDDINGS, inputs=("input_ids",), n_steps=8, baselines=padding)
    result = ask(bert(), IDS, asked, check=CheckRequest(CheckMode.SAME_PASS)).attributions[0]
    assert [check.verdict for check in result.checks] == [Verdict.AGREES] * 2


def test_a_map_that_fits_no_input_is_an_error_and_no_empty_answer() -> None:
    """Captum answers an empty tensor, with a warning, where Grad-CAM's map cannot be scaled to an input."""
    inputs = given(TWO_INPUTS, 4, torch.float32)
    failure = refused(TWO_INPUTS(), inputs, ca.GuidedGradCam(layer="b"))
    assert failure.reason == "METHOD_INAPPLICABLE"
    assert "cannot be scaled to the input 'gain', of shape [4]" in failure.message


def test_a_rectifiers_gradient_is_edited_or_overridden() -> None:
    """Both at once would depend on whose hook comes first; edits elsewhere are fine."""
    twice = ca.Scale("r1", "grad_input", factor=2.0)
    assert refused(MODULES(), IMAGES, ca.GuidedBackprop(), edits=(twice,)).reason == "EDIT_INAPPLICABLE"
    elsewhere = (ca.Scale("r1", factor=2.0), ca.Scale("b", "grad_input", factor=2.0))
    for asked in (ca.GuidedBackprop(), ca.Deconvolution(), ca.GuidedGradCam(layer="a")):
        assert verdict(ask(MODULES(), IMAGES, asked, edits=elsewhere).attributions[0]) is Verdict.AGREES


@pytest.mark.parametrize("mode", [CheckMode.SAME_PASS, CheckMode.INDEPENDENT])
def test_rows_with_numbers_of_their_own_keep_their_places(mode: CheckMode) -> None:
    """Edits of rows, and targets with a number a row: explained one step a pass, or refused where Captum cannot."""
    rows = {"edits": (ca.Mix("a", weight=0.5, permutation=(1, 0, 3, 2)),)}
    loss = {"target": ca.CrossEntropy((0, 1, 2, 0))}
    for more in (rows, loss):
        assert refused(MODULES(), IMAGES, ca.LayerConductance(layer="b"), **more).reason == "METHOD_INAPPLICABLE"
        for kind in (ca.InternalInfluence, ca.LayerIntegratedGradients):
            result = ask(MODULES(), IMAGES, kind(layer="b", n_steps=6), check=CheckRequest(mode), **more)
            assert verdict(result.attributions[0]) is Verdict.AGREES
    every = (ca.Scale("a", factor=2.0),)
    result = ask(MODULES(), IMAGES, ca.LayerConductance(layer="b", n_steps=6), edits=every, check=CheckRequest(mode))
    assert verdict(result.attributions[0]) is Verdict.AGREES
