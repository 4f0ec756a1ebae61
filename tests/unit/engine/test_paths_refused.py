"""What cannot be explained along a path or at rectifiers is refused with the field at fault."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest
from cutaway.contract.results import Verdict
from tests.support.checked_attributions import ask, verdict
from tests.support.path_models import MODULES, given

IMAGES = given(MODULES, 4, torch.float32)


def refused(model: Any, inputs: dict[str, Tensor], asked: Attribution, **more: Any) -> ca.CutawayError:
    with pytest.raises(ca.InvalidArgument) as failure:
        ask(model, inputs, asked, **more)
    return failure.value


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
