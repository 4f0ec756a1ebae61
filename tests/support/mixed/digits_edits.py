"""Requests to the digits network that change what flows through it."""

from __future__ import annotations

import torch
from torch import Tensor

import cutaway as ca
from tests.support.mixed.by_hand import Answer, ByHand
from tests.support.mixed.digits import ROWS, asking, noise, see_all
from tests.support.mixed.kind import Kind

CHANNELS = noise(16, 1, 1)
HIDDEN = noise(32)
STEER = noise(ROWS, 32)


def _scaled(hand: ByHand) -> Answer:
    hand.after("relu1", lambda value: value * 0.5)
    return see_all(hand)


def _added(hand: ByHand) -> Answer:
    hand.after("conv1", lambda value: value + torch.from_numpy(CHANNELS))
    hand.see("conv1", "output")
    return hand.answer()


def _replaced(hand: ByHand) -> Answer:
    def change(value: Tensor) -> Tensor:
        return torch.stack([value[0], torch.from_numpy(HIDDEN), value[2]])

    hand.after("fc1", change)
    return see_all(hand)


def _zeroed(hand: ByHand) -> Answer:
    def change(value: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(value[:, :4]), value[:, 4:]], dim=1)

    hand.after("conv2", change)
    return see_all(hand)


def _clamped(hand: ByHand) -> Answer:
    hand.after("relu2", lambda value: value.clamp(0.1, 0.4))
    hand.see("pool", "input", "output")
    return hand.answer()


def _mixed(hand: ByHand) -> Answer:
    hand.after("conv1", lambda value: 0.75 * value + (1 - 0.75) * value[[2, 0, 1]])
    return see_all(hand)


def _steered(hand: ByHand) -> Answer:
    hand.before("fc2", lambda value: value + torch.from_numpy(STEER))
    hand.see("fc2", "input", "output", "grad_input")
    return hand.answer()


def _part(hand: ByHand) -> Answer:
    def change(value: Tensor) -> Tensor:
        changed = value.clone()
        changed[[2, 0], 3:9:2, :, -2:] = value[[2, 0], 3:9:2, :, -2:] * 3.0
        return changed

    hand.after("conv2", change)
    return see_all(hand)


def _in_order(hand: ByHand) -> Answer:
    unedited = hand.forward(*hand.inputs.values()).detach().numpy()
    hand.after("relu2", lambda value: value * 2.0 + 0.25)
    hand.after("fc1", lambda value: value.clamp(max=1.0))
    hand.see("fc1", "output")
    return {**hand.answer(), "unedited.output": unedited}


def _muted_row(hand: ByHand) -> Answer:
    def change(gradient: Tensor) -> Tensor:
        return gradient * torch.tensor([0.0, 1.0, 1.0])[:, None, None, None]

    hand.backward_after("conv2", change)
    return see_all(hand)


def _louder_backwards(hand: ByHand) -> Answer:
    hand.backward_before("fc1", lambda gradient: gradient * 3.0)
    return see_all(hand)


def _clamped_backwards(hand: ByHand) -> Answer:
    hand.backward_after("relu1", lambda gradient: gradient.clamp(-0.01, 0.01))
    hand.see("relu1", "grad_output")
    hand.gradients("image", parameters={"conv1.weight": lambda gradient: gradient})
    return hand.answer()


def _operator_scaled(hand: ByHand) -> Answer:
    hand.after("relu1", lambda value: value * 1.5)
    hand.see("conv2", "input", "output")
    return hand.answer()


def _operator_backwards(hand: ByHand) -> Answer:
    hand.backward_after("relu2", lambda gradient: gradient * 0.5)
    return see_all(hand)


KINDS = (
    Kind("scale", asking(edits=[ca.Scale("relu1", factor=0.5)]), _scaled),
    Kind("add", {"edits": [ca.Add("conv1", addend=CHANNELS)], "captures": "conv1"}, _added),
    Kind("replace a row", asking(edits=[ca.Replace("fc1", tensor=HIDDEN, rows=(1,))]), _replaced),
    Kind("zero channels", asking(edits=[ca.Zero("conv2", slices=(ca.Slice(1, 0, 4),))]), _zeroed),
    Kind(
        "clamp",
        {"edits": [ca.Clamp("relu2", minimum=0.1, maximum=0.4)], "captures": [ca.Capture("pool", ("input", "output"))]},
        _clamped,
    ),
    Kind("mix", asking(edits=[ca.Mix("conv1", weight=0.75, permutation=(2, 0, 1))]), _mixed),
    Kind(
        "steer",
        {
            "edits": [ca.Add("fc2", "input", addend=STEER)],
            "captures": [ca.Capture("fc2", ("input", "output", "grad_input"))],
        },
        _steered,
    ),
    Kind(
        "rows and slices",
        asking(edits=[ca.Scale("conv2", factor=3.0, rows=(2, 0), slices=(ca.Slice(1, 3, 9, 2), ca.Slice(-1, -2)))]),
        _part,
    ),
    Kind(
        "edits in order, compared",
        {
            "edits": [
                ca.Scale("relu2", factor=2.0),
                ca.Clamp("fc1", maximum=1.0),
                ca.Add("relu2", addend=0.25),
            ],
            "captures": "fc1",
            "compare": True,
        },
        _in_order,
    ),
    Kind("mute a row's gradient", asking(edits=[ca.Zero("conv2", "grad_output", rows=(0,))]), _muted_row),
    Kind("louder gradient", asking(edits=[ca.Scale("fc1", "grad_input", factor=3.0)]), _louder_backwards),
    Kind(
        "clamped gradient",
        {
            "edits": [ca.Clamp("relu1", "grad_output", minimum=-0.01, maximum=0.01)],
            "captures": [ca.Capture("relu1", "grad_output"), ca.Capture(parameter="conv1.weight")],
            "input_gradients": True,
        },
        _clamped_backwards,
    ),
    Kind(
        "scale an operator",
        {
            "edits": [ca.Scale(op="relu1:relu#0", factor=1.5)],
            "captures": [ca.Capture("conv2", at=("input", "output"))],
        },
        _operator_scaled,
    ),
    Kind(
        "scale an operator's gradient",
        asking(edits=[ca.Scale(op="relu2:relu#0", at="grad_output", factor=0.5)]),
        _operator_backwards,
    ),
)
