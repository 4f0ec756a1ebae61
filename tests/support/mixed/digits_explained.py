"""Requests to the digits network for explanations, with edits and without."""

from __future__ import annotations

from typing import Any

import torch
from captum import attr
from torch import Tensor

import cutaway as ca
from tests.support.mixed.by_hand import Answer, ByHand
from tests.support.mixed.digits import ROWS
from tests.support.mixed.kind import Kind


def _explained(hand: ByHand) -> Answer:
    hand.of_predicted_classes()
    return hand.answer(
        lambda forward, classes: attr.Saliency(forward).attribute(_leaf(hand), target=classes),
        lambda forward, classes: attr.IntegratedGradients(forward).attribute(
            _leaf(hand), target=classes, n_steps=50, internal_batch_size=64
        ),
    )


def _explained_independently(hand: ByHand) -> Answer:
    layer: Any = hand.model.get_submodule("conv2")
    hand.of_predicted_classes()
    return hand.answer(
        lambda forward, classes: attr.InputXGradient(forward).attribute(_leaf(hand), target=classes),
        lambda forward, classes: attr.LayerGradCam(forward, layer).attribute(_leaf(hand), target=classes),
    )


def _explained_unchecked(hand: ByHand) -> Answer:
    layer: Any = hand.model.get_submodule("fc1")
    return hand.answer(
        lambda forward, _: attr.LayerActivation(forward, layer).attribute(_leaf(hand)),
        lambda forward, _: attr.LayerGradientXActivation(forward, layer).attribute(_leaf(hand), target=2),
    )


def _explained_top(hand: ByHand) -> Answer:
    with torch.no_grad():
        ranked = hand.forward(*hand.inputs.values()).topk(2, dim=1).indices
    return hand.answer(
        *(
            lambda forward, _, column=column: attr.Saliency(forward).attribute(_leaf(hand), target=column)
            for column in ranked.unbind(dim=1)
        )
    )


def _explained_edited(hand: ByHand) -> Answer:
    hand.after("relu1", lambda value: value * 0.5)
    hand.of_predicted_classes()
    return hand.answer(
        lambda forward, classes: attr.IntegratedGradients(forward).attribute(
            _leaf(hand), target=classes, baselines=0.5, n_steps=50, internal_batch_size=ROWS
        )
    )


def _explained_backwards(hand: ByHand) -> Answer:
    hand.backward_after("relu2", lambda gradient: gradient.clamp(min=0.0))
    hand.of_predicted_classes()
    return hand.answer(
        lambda forward, classes: attr.Saliency(forward).attribute(_leaf(hand), target=classes, abs=False)
    )


def _leaf(hand: ByHand) -> Tensor:
    return hand.inputs["image"].clone().requires_grad_()


KINDS = (
    Kind("explained", {"attributions": [ca.Saliency(), ca.IntegratedGradients(n_steps=50)]}, _explained),
    Kind(
        "explained, checked in passes of their own",
        {"attributions": [ca.InputXGradient(), ca.LayerGradCam(layer="conv2")], "check": "independent"},
        _explained_independently,
    ),
    Kind(
        "explained, unchecked",
        {
            "attributions": [
                ca.LayerActivation(layer="fc1"),
                ca.LayerGradientXActivation(layer="fc1", target=ca.ClassIndex((2,))),
            ],
            "check": "off",
        },
        _explained_unchecked,
    ),
    Kind("top classes explained", {"attributions": [ca.Saliency(target=ca.TopK(2))]}, _explained_top),
    Kind(
        "explained under an edit",
        {
            "edits": [ca.Scale("relu1", factor=0.5)],
            "attributions": [ca.IntegratedGradients(n_steps=50, baselines={"image": 0.5})],
        },
        _explained_edited,
    ),
    Kind(
        "explained under an edit of gradients",
        {
            "edits": [ca.Clamp("relu2", "grad_output", minimum=0.0)],
            "attributions": [ca.Saliency(absolute=False)],
        },
        _explained_backwards,
    ),
)
