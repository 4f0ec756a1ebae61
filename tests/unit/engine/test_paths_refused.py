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
from tests.support.checked_attributions import IDS, ask, bert, verdict
from tests.support.path_models import MODULES, given

IMAGES = given(MODULES, 4, torch.float32)
EMBEDDINGS = "network.bert.embeddings"


def refused(model: Any, inputs: dict[str, Tensor], asked: Attribution, **more: Any) -> ca.CutawayError:
    with pytest.raises(ca.InvalidArgument) as failure:
        ask(model, inputs, asked, **more)
    return failure.value


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
