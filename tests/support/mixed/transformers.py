"""Requests to MiniLM, which reads token ids, and to a ResNet-50: large models, a few kinds each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from captum import attr
from torch import Tensor

import cutaway as ca
from tests.support.mixed.by_hand import Answer, ByHand
from tests.support.mixed.digits import noise
from tests.support.mixed.kind import Kind

DENSE = "encoder.layer.2.attention.output.dense"
GELU = "encoder.layer.1.intermediate.intermediate_act_fn"
WIDTH = 384
DIRECTION = noise(WIDTH)
STAGE = "resnet.encoder.stages.2"


def _plain(hand: ByHand) -> Answer:
    return hand.answer()


def _seen(hand: ByHand) -> Answer:
    hand.of_classes(torch.tensor([7, 200]))
    hand.see("embeddings", "output", "grad_output")
    hand.see(DENSE, "input", "output", "grad_input", "grad_output")
    return hand.answer()


SEEN: dict[str, Any] = {
    "target": [7, 200],
    "captures": [
        ca.Capture("embeddings", at=("output", "grad_output")),
        ca.Capture(DENSE, at=("input", "output", "grad_input", "grad_output")),
    ],
}


def _steered(hand: ByHand) -> Answer:
    hand.after("encoder.layer.3", lambda value: value + torch.from_numpy(DIRECTION))
    return _seen(hand)


def _one_sentence(hand: ByHand) -> Answer:
    def change(value: Tensor) -> Tensor:
        return torch.stack([value[0], value[1] * 0.0])

    hand.after(DENSE, change)
    return _seen(hand)


def _muted(hand: ByHand) -> Answer:
    hand.backward_after(DENSE, lambda gradient: gradient * 0.5)
    return _seen(hand)


def _gelu(hand: ByHand) -> Answer:
    hand.after(GELU, lambda value: value.clamp(min=0.0))
    hand.see(GELU, "output", name=f"{GELU}:gelu#0", then=lambda value: value.mean(dim=(1,)))
    return hand.answer()


def _explained(hand: ByHand) -> Answer:
    hand.of_classes(torch.tensor([7, 200]))
    layer: Any = hand.model.get_submodule("embeddings")
    ids, mask = hand.inputs.values()
    return hand.answer(
        lambda forward, _: attr.LayerGradientXActivation(forward, layer).attribute(
            ids, additional_forward_args=(mask,), target=torch.tensor([7, 200])
        )
    )


SENTENCES = (
    Kind("nothing but predictions", {}, _plain),
    Kind("all points", SEEN, _seen),
    Kind("steer", {**SEEN, "edits": [ca.Add("encoder.layer.3", addend=DIRECTION)]}, _steered),
    Kind("zero for one sentence", {**SEEN, "edits": [ca.Zero(DENSE, rows=(1,))]}, _one_sentence),
    Kind("half the gradient", {**SEEN, "edits": [ca.Scale(DENSE, "grad_output", factor=0.5)]}, _muted),
    Kind(
        "an operator clamped",
        {
            "edits": [ca.Clamp(op=f"{GELU}:gelu#0", minimum=0.0)],
            "captures": [ca.Capture(op=f"{GELU}:gelu#0", reduce=ca.Mean((1,)))],
        },
        _gelu,
    ),
    Kind(
        "explained", {"target": [7, 200], "attributions": [ca.LayerGradientXActivation(layer="embeddings")]}, _explained
    ),
)


def _stage(hand: ByHand) -> Answer:
    hand.see(STAGE, "output", then=lambda value: value.mean(dim=(2, 3)))
    return hand.answer()


def _without_a_stage(hand: ByHand) -> Answer:
    unedited = hand.forward(*hand.inputs.values()).detach().numpy()
    hand.after(STAGE, lambda value: value * np.float32(0.5))
    hand.of_classes(torch.tensor([0, 1]))
    hand.gradients("pixel_values")
    return {**hand.answer(), "unedited.logits": unedited}


RESNET = (
    Kind("reduced", {"captures": [ca.Capture(STAGE, reduce=ca.Mean((2, 3)))]}, _stage),
    Kind(
        "half a stage, compared",
        {"edits": [ca.Scale(STAGE, factor=0.5)], "target": [0, 1], "input_gradients": True, "compare": True},
        _without_a_stage,
    ),
)
