"""Windows, strides, masks and samples without a name are those of the only input that is explained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.client.request_builder import build_request
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from tests.support.checked_attributions import noise, wired

UNTYPED: Any = ca
MASK = np.arange(16).reshape(1, 1, 4, 4) // 4
SAMPLES = noise(3, 1, 4, 4, seed=9).numpy()


def scores(m: Any, image: Tensor, table: Tensor) -> Tensor:
    y: Tensor = m.head(m.body(image.flatten(1)).tanh() + table)
    return y


MODEL = wired(scores, body=lambda: nn.Linear(16, 5), head=lambda: nn.Linear(5, 3))
INPUTS = {"image": noise(2, 1, 4, 4), "table": noise(2, 5)}


def values(**fields: Any) -> dict[str, Any]:
    """Read as a client's, and answered by the engine."""
    model = MODEL()
    asked = build_request("m", {name: x.numpy() for name, x in INPUTS.items()}, target=1, seed=3, **fields)
    (result,) = inspect(InspectedModel(model, lambda tensors: model(**tensors)), asked, INPUTS).attributions
    assert result.verdict is ca.Verdict.AGREES, result.checks
    return dict(result.values)


OF_IMAGE: dict[str, Any] = {
    "windows": lambda name: UNTYPED.Occlusion(inputs=("image",), windows=name((1, 2, 2)), strides=name((1, 1, 2))),
    "masks": lambda name: UNTYPED.FeatureAblation(inputs=("image",), masks=name(MASK)),
    "samples": lambda name: UNTYPED.GradientShap(inputs=("image",), baselines=name(SAMPLES)),
    "regions": lambda name: UNTYPED.Saliency(inputs=("image",), metrics=(UNTYPED.RelevanceMass(regions=name(MASK)),)),
    "features of a metric": lambda name: UNTYPED.Saliency(
        inputs=("image",), metrics=(UNTYPED.Deletion(masks=name(MASK)),)
    ),
    "a mapping": lambda name: {"method": "occlusion", "inputs": ["image"], "windows": name([1, 2, 2])},
}


@pytest.mark.parametrize("kind", OF_IMAGE)
def test_one_without_a_name_is_that_of_the_only_input(kind: str) -> None:
    alone, named = (values(attributions=[OF_IMAGE[kind](name)]) for name in (lambda x: x, lambda x: {"image": x}))
    assert alone.keys() == {"image"}
    assert np.array_equal(alone["image"], named["image"])


OF_SEVERAL = {
    "windows": UNTYPED.Occlusion(windows=(1, 2, 2)),
    "strides": UNTYPED.Occlusion(windows={"image": (1, 2, 2), "table": (2,)}, strides=(1, 2, 2)),
    "masks": UNTYPED.FeatureAblation(masks=MASK),
    "baselines": UNTYPED.GradientShap(baselines=SAMPLES),
}


@pytest.mark.parametrize("field", OF_SEVERAL)
def test_one_for_several_inputs_is_refused_by_their_names(field: str) -> None:
    with pytest.raises(
        ca.InvalidArgument, match=r"one of several inputs, image, table: .* such as \{image: \.\.\.\}"
    ) as e:
        values(attributions=[OF_SEVERAL[field]])
    assert f".{field}" in e.value.field


def test_superpixels_and_a_baseline_without_a_name_are_of_all_inputs() -> None:
    found = values(attributions=[UNTYPED.FeatureAblation(masks=ca.Superpixels(4), baselines=0.5)])
    assert found.keys() == {"image", "table"}


def test_an_input_without_a_window_is_told_how_to_be_left_out() -> None:
    """And what is advised works."""
    with pytest.raises(ca.InvalidArgument, match=r"explain only inputs=\('image',\), or give it a size .* \[5\]"):
        values(attributions=[ca.Occlusion(windows={"image": (1, 2, 2)})])
    assert values(attributions=[ca.Occlusion(inputs=("image",), windows={"image": (1, 2, 2)})]).keys() == {"image"}


def test_a_window_without_a_name_moves_over_ids_too() -> None:
    model = wired(lambda m, ids: m.emb(ids).sum(1), emb=lambda: nn.Embedding(9, 3))()
    ids = {"ids": torch.tensor([[1, 7, 2], [3, 4, 5]])}
    asked = build_request("m", ids, target=1, attributions=[UNTYPED.Occlusion(windows=(1,))])
    (found,) = inspect(InspectedModel(model, lambda tensors: model(**tensors)), asked, ids).attributions
    weights = model.state_dict()["emb.weight"]
    assert np.allclose(found.values["ids"], (weights[ids["ids"], 1] - weights[0, 1]), atol=1e-6)


def test_an_attack_takes_the_mask_of_the_only_input() -> None:
    model = MODEL()
    mask = np.zeros((1, 1, 4, 4), bool)
    mask[..., 0] = True
    asked = build_request("m", INPUTS, attacks=[UNTYPED.FGSM(0.1, inputs=("image",), masks=mask)])
    (attack,) = inspect(InspectedModel(model, lambda tensors: model(**tensors)), asked, INPUTS).attacks
    moved = attack.inputs["image"] != INPUTS["image"].numpy()
    assert moved[..., 0].all()
    assert not moved[..., 1:].any()
